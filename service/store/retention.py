"""What the database still holds of jobs that ended long ago."""

from datetime import datetime

from sqlalchemy import ColumnElement, delete, exists, func, select, update

from service.models import ENDED_STATES
from service.store.database import Database
from service.store.tables import jobs, steps

_DELETED_AT_ONCE = 5000
"""Samples that one transaction deletes, about: others that want to write wait for it."""


class RetentionStore:
    """Finds ended jobs by their age and takes them out of the database, bit by bit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def with_steps(self, ended_before: datetime) -> list[str]:
        """Jobs that ended before then and have step samples, the oldest first."""
        return await self._ended(ended_before, exists().where(steps.c.job_id == jobs.c.id))

    async def ended(self, before: datetime) -> list[str]:
        """Jobs that ended before then, the oldest first."""
        return await self._ended(before)

    async def freeze_steps(self, job_id: str, at: datetime) -> None:
        """From now on the samples of the job do not change any more: its reports are refused."""
        frozen = update(jobs).where(jobs.c.id == job_id, jobs.c.steps_archived_at.is_(None))
        async with self._database.write() as connection:
            await connection.execute(frozen.values(steps_archived_at=at))

    async def delete_some_steps(self, job_id: str) -> bool:
        """Whether there were any; the oldest of them are gone now."""
        some = select(steps.c.step).where(steps.c.job_id == job_id).order_by(steps.c.step).limit(_DELETED_AT_ONCE)
        async with self._database.write() as connection:
            last = (await connection.execute(select(func.max(some.subquery().c.step)))).scalar()
            if last is None:
                return False
            await connection.execute(delete(steps).where(steps.c.job_id == job_id, steps.c.step <= last))
        return True

    async def delete_job(self, job_id: str) -> None:
        """Delete an ended job with its rows in all tables."""
        async with self._database.write() as connection:
            await connection.execute(delete(jobs).where(jobs.c.id == job_id, jobs.c.state.in_(ENDED_STATES)))

    async def _ended(self, before: datetime, *further: ColumnElement[bool]) -> list[str]:
        query = select(jobs.c.id).where(jobs.c.state.in_(ENDED_STATES), jobs.c.ended_at < before)
        async with self._database.read() as connection:
            return list((await connection.execute(query.where(*further).order_by(jobs.c.ended_at))).scalars())
