"""The record of what requests have changed. It is only added to, and outlives the jobs that it tells of."""

from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.security.audit import AuditEntry, Deed, JobFacts
from service.store.database import Database
from service.store.tables import audit


async def write_down(
    connection: AsyncConnection,
    deed: Deed,
    at: datetime,
    job: tuple[str, str],
    before: JobFacts | None,
    after: JobFacts | None,
) -> None:
    """Add an entry within the transaction that makes the change; `job` is its id and its project."""
    job_id, project = job
    entry = {
        "time": at,
        "actor": deed.actor,
        "action": deed.action.value,
        "job_id": job_id,
        "project": project,
        "before": None if before is None else before.model_dump_json(),
        "after": None if after is None else after.model_dump_json(),
    }
    await connection.execute(insert(audit).values(entry))


class AuditStore:
    """Reads the record."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, job_id: str | None, before: int | None, limit: int) -> tuple[list[AuditEntry], int | None]:
        """Entries with a number below `before`, newest first, and the number to go on below; of one job, or of all."""
        query = select(audit).order_by(audit.c.number.desc()).limit(limit + 1)
        if job_id is not None:
            query = query.where(audit.c.job_id == job_id)
        if before is not None:
            query = query.where(audit.c.number < before)
        async with self._database.read() as connection:
            rows = [row._asdict() for row in await connection.execute(query)]
        for row in rows:
            for side in ("before", "after"):
                row[side] = None if row[side] is None else JobFacts.model_validate_json(row[side])
        entries = [AuditEntry.model_validate(row) for row in rows[:limit]]
        return entries, entries[-1].number if len(rows) > limit else None
