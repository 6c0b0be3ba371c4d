"""The record of how jobs got where they are: one event for each change of state."""

from sqlalchemy import select

from service.models import StateChange
from service.store.database import Database
from service.store.tables import events


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
