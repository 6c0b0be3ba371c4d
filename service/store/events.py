"""The record of how jobs got where they are: one event for each change of state."""

from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.models import JobState, StateChange
from service.store.database import Database
from service.store.tables import events
from service.store.webhooks import Outbox
from service.webhooks.messages import JobChanged


async def write_event(
    connection: AsyncConnection,
    outbox: Outbox,
    at: datetime,
    job: tuple[str, str, str],
    before: JobState | None,
    state: JobState,
    reason: str | None,
) -> None:
    """Write down a change of state within the transaction that makes it; `job` is its id, its name and its project."""
    job_id, name, project = job
    event = {"job_id": job_id, "time": at, "state": state, "reason": reason}
    number = (await connection.execute(insert(events).values(event).returning(events.c.number))).scalar_one()
    change = JobChanged(
        number=number, job_id=job_id, name=name, project=project, state=state, before=before,
        reason=reason,
    )  # fmt: skip
    await outbox.add(connection, at, change)


class EventStore:
    """Reads what `JobStore` writes down in the same transaction as the change itself.

    The events of one job get their numbers while its row is locked, so whoever has seen a number has seen, or can
    see, all smaller ones of the job.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def after(self, job_id: str, number: int) -> list[StateChange]:
        """The changes of a job with a larger number than this, in order."""
        query = (
            select(events.c.number, events.c.time, events.c.state, events.c.reason)
            .where(events.c.job_id == job_id, events.c.number > number)
            .order_by(events.c.number)
        )
        async with self._database.read() as connection:
            return [StateChange.model_validate(row._asdict()) for row in await connection.execute(query)]
