"""The record of reports: step samples and what else a running job tells about itself."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Row, case, func, select, update
from sqlalchemy.dialects.sqlite import insert

from service.store.database import Database
from service.store.packing import pack, unpack
from service.store.tables import jobs, steps
from workers.reports import ReportBatch, StepSample

FIGURES = ("step_ms", "compute_ms", "comm_ms", "exposed_ms", "hidden_ms")


class StepStore:
    """Reads and writes step samples, one per job, step and rank."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, job_id: str, batch: ReportBatch) -> None:
        """Store a batch; storing it again changes nothing. A sample of an older attempt never replaces a newer one."""
        upsert = insert(steps)
        upsert = upsert.on_conflict_do_update(
            index_elements=[steps.c.job_id, steps.c.step, steps.c.rank],
            set_={column.name: upsert.excluded[column.name] for column in steps.c if not column.primary_key},
            where=upsert.excluded.attempt >= steps.c.attempt,
        )
        rows = [_to_row(job_id, sample) for sample in batch.samples]
        async with self._database.write() as connection:
            if rows:
                await connection.execute(upsert, rows)
            await connection.execute(update(jobs).where(jobs.c.id == job_id).values(_job_values(batch)))

    async def newest_complete(self, job_id: str, ranks: int) -> int | None:
        """The newest step that all `ranks` ranks reported."""
        query = (
            select(steps.c.step)
            .where(steps.c.job_id == job_id)
            .group_by(steps.c.step)
            .having(func.count() >= ranks)
            .order_by(steps.c.step.desc())
            .limit(1)
        )
        async with self._database.read() as connection:
            return (await connection.execute(query)).scalar()

    async def of_step(self, job_id: str, step: int) -> list[StepSample]:
        """What the ranks reported of one step, by rank."""
        query = select(steps).where(steps.c.job_id == job_id, steps.c.step == step).order_by(steps.c.rank)
        async with self._database.read() as connection:
            return [_to_sample(row) for row in await connection.execute(query)]

    async def page(self, job_id: str, after: int, until: int | None, rank: int | None, limit: int) -> list[StepSample]:
        """Samples of the steps above `after` and up to `until`, about `limit` of them.

        Never ends in the middle of a step: a step that would not fit is left to the next page, unless it is the first.
        """
        chosen = [steps.c.job_id == job_id, steps.c.step > after]
        if until is not None:
            chosen.append(steps.c.step <= until)
        if rank is not None:
            chosen.append(steps.c.rank == rank)
        query = select(steps).where(*chosen).order_by(steps.c.step, steps.c.rank)
        async with self._database.read() as connection:
            rows = (await connection.execute(query.limit(limit + 1))).all()
            if len(rows) > limit:
                cut = rows[-1].step
                if rows[0].step == cut:
                    rows = (await connection.execute(query.where(steps.c.step == cut))).all()
                else:
                    rows = [row for row in rows if row.step < cut]
        return [_to_sample(row) for row in rows]

    async def figures(self, job_id: str) -> Sequence[Row[Any]]:
        """Of every sample: step, rank, attempt, the five `FIGURES`, ids, overlapped_ids, packed collectives."""
        names = ("step", "rank", "attempt", *FIGURES, "ids", "overlapped_ids", "collectives")
        query = select(*(steps.c[name] for name in names)).where(steps.c.job_id == job_id)
        async with self._database.read() as connection:
            return (await connection.execute(query)).all()

    async def newest_of_each_rank(self, job_ids: Iterable[str]) -> list[tuple[str, StepSample]]:
        """The newest sample of every rank of the given jobs."""
        newest = (
            select(steps.c.job_id, steps.c.rank, func.max(steps.c.step).label("step"))
            .where(steps.c.job_id.in_(list(job_ids)))
            .group_by(steps.c.job_id, steps.c.rank)
            .subquery()
        )
        query = select(steps).join(
            newest,
            (steps.c.job_id == newest.c.job_id) & (steps.c.rank == newest.c.rank) & (steps.c.step == newest.c.step),
        )
        async with self._database.read() as connection:
            return [(row.job_id, _to_sample(row)) for row in await connection.execute(query)]


def _job_values(batch: ReportBatch) -> dict[str, Any]:
    """What a batch changes about its job; counters only grow, so that a late delivery takes nothing back."""
    values: dict[str, Any] = {
        "dropped_samples": case((jobs.c.dropped_samples < batch.dropped, batch.dropped), else_=jobs.c.dropped_samples)
    }
    if batch.samples:
        attempts = max(sample.attempt for sample in batch.samples) + 1
        values["attempts"] = case((jobs.c.attempts < attempts, attempts), else_=jobs.c.attempts)
        values["has_steps"] = True
    for name in ("plan", "result", "failure"):
        part = getattr(batch, name)
        if part is not None:
            values[name] = part.model_dump_json()
    return values


def _to_row(job_id: str, sample: StepSample) -> dict[str, Any]:
    row = sample.model_dump(exclude={"collectives"})
    row["job_id"] = job_id
    row["collectives"] = pack(sample)
    return row


def _to_sample(row: Row[Any]) -> StepSample:
    values = row._asdict()
    values["collectives"] = unpack(values["collectives"])
    return StepSample.model_validate(values)
