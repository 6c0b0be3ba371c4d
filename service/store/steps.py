"""The record of reports: step samples and what else a running job tells about itself."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, case, delete, func, select, update

# SQLite has taken this statement over from PostgreSQL, and SQLAlchemy writes it for both.
from sqlalchemy.dialects.postgresql import Insert, insert

from service.store.database import Database
from service.store.packing import pack, unpack
from service.store.tables import jobs, steps, worker_groups
from workers.reports import JobPlan, ReportBatch, StepSample

FIGURES = ("step_ms", "compute_ms", "comm_ms", "exposed_ms", "hidden_ms")


class StepsArchivedError(Exception):
    """The samples of a job do not change any more; they lie in the archive, or are on their way there."""


class StepStore:
    """Reads and writes step samples, one per job, step and rank."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, job_id: str, batch: ReportBatch) -> None:
        """Store a batch; storing it again changes nothing. A sample of an older attempt never replaces a newer one.
        Raises `StepsArchivedError`.

        An attempt undoes the steps that earlier ones had done beyond its start: those samples go, also of ranks that it
        does not have.
        """
        upsert = insert(steps)
        upsert = upsert.on_conflict_do_update(
            index_elements=[steps.c.job_id, steps.c.step, steps.c.rank],
            set_={column.name: upsert.excluded[column.name] for column in steps.c if not column.primary_key},
            where=upsert.excluded.attempt >= steps.c.attempt,
        )
        rows = [_to_row(job_id, sample) for sample in batch.samples]
        async with self._database.write() as connection:
            # Deliveries of one job come one after the other: which sample stays depends on those that are there.
            known = select(jobs.c.steps_archived_at).where(jobs.c.id == job_id).with_for_update()
            if (await connection.execute(known)).scalar() is not None:
                raise StepsArchivedError(job_id)
            if rows:
                await connection.execute(upsert, rows)
            for undone in _undone(job_id, batch.samples):
                await connection.execute(delete(steps).where(*undone))
            if batch.plan is not None:
                await connection.execute(_world_size(job_id, batch.plan))
            await connection.execute(update(jobs).where(jobs.c.id == job_id).values(_job_values(batch)))

    async def newest_complete(self, job_id: str, ranks: int) -> int | None:
        """The newest step that all ranks of its attempt reported; `ranks` for attempts whose plan is not known."""
        known = select(worker_groups.c.attempt, worker_groups.c.world_size).where(worker_groups.c.job_id == job_id)
        async with self._database.read() as connection:
            sizes = {row.attempt: row.world_size for row in await connection.execute(known)}
            needed: ColumnElement[int] | int = ranks
            if sizes:
                needed = case(sizes, value=func.max(steps.c.attempt), else_=ranks)
            query = (
                select(steps.c.step)
                .where(steps.c.job_id == job_id)
                .group_by(steps.c.step)
                .having(func.count() >= needed)
                .order_by(steps.c.step.desc())
                .limit(1)
            )
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


def _undone(job_id: str, samples: Sequence[StepSample]) -> Iterator[list[ColumnElement[bool]]]:
    """What the first steps of each attempt make void."""
    begin: dict[int, int] = {}
    for sample in samples:
        begin[sample.attempt] = min(sample.step, begin.get(sample.attempt, sample.step))
    for attempt, step in begin.items():
        if attempt > 0:
            yield [steps.c.job_id == job_id, steps.c.step >= step, steps.c.attempt < attempt]


def _world_size(job_id: str, plan: JobPlan) -> Insert:
    values = {"job_id": job_id, "attempt": plan.attempt, "world_size": plan.world_size}
    keys = [worker_groups.c.job_id, worker_groups.c.attempt]
    return insert(worker_groups).values(values).on_conflict_do_update(index_elements=keys, set_=values)


def _job_values(batch: ReportBatch) -> dict[str, Any]:
    """What a batch changes about its job; counters only grow, so that a late delivery takes nothing back."""
    values: dict[str, Any] = {
        "dropped_samples": case((jobs.c.dropped_samples < batch.dropped, batch.dropped), else_=jobs.c.dropped_samples)
    }
    if batch.samples:
        attempts = max(sample.attempt for sample in batch.samples) + 1
        values["attempts"] = case((jobs.c.attempts < attempts, attempts), else_=jobs.c.attempts)
        values["has_steps"] = True
    if batch.plan is not None:
        # The plan of a later attempt stays.
        newest = select(func.max(worker_groups.c.attempt)).where(worker_groups.c.job_id == jobs.c.id).scalar_subquery()
        values["plan"] = case((newest > batch.plan.attempt, jobs.c.plan), else_=batch.plan.model_dump_json())
    for name in ("result", "failure", "stop"):
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
