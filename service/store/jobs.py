"""The record of jobs: what was asked for, where each one stands, and how it got there."""

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Json
from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from service.models import ENDED_STATES, JobState
from service.security.audit import Deed, JobFacts
from service.store.audit import write_down
from service.store.database import Database
from service.store.events import write_event
from service.store.tables import jobs, submissions
from service.store.webhooks import Outbox
from service.tracing.spans import traceparent
from workers.job import JobSpec
from workers.reports import JobFailure, JobPlan, JobResult, JobStop

# Databases limit the parameters of a query.
_IDS_AT_ONCE = 500
_SPECS_KEPT = 2000

ACTIVE_STATES = frozenset(JobState) - ENDED_STATES


class JobRecord(BaseModel):
    """A job as it is stored.

    `stop_requested` is the recorded wish to stop; `on_ray` says that Ray was once seen to know the job; `has_steps`
    that a step was reported since it was started last. `token_hash` belongs to the token with which the job reports.

    A job may be started several times: `first_attempt` counts the attempts before the last start, `losses` how often
    Ray has lost it. `preempted_by` is the job for which it is being stopped. Back in the queue, `requeued` says why,
    and it does not start again before `not_before`. `stop` is what its last start has told of its end. `starts_by` is
    when it has waited for its first start too long.
    `traceparent` is the span of its submission.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    id: str
    name: str
    project: str
    priority: int
    state: JobState
    reason: str | None
    stop_requested: bool
    on_ray: bool
    has_steps: bool
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    attempts: int
    dropped_samples: int
    token_hash: str | None
    spec: JobSpec
    plan: Json[JobPlan] | None
    result: Json[JobResult] | None
    failure: Json[JobFailure] | None
    first_attempt: int = 0
    losses: int = 0
    preempted_by: str | None = None
    requeued: str | None = None
    not_before: datetime | None = None
    steps_archived_at: datetime | None = None
    starts_by: datetime | None = None
    traceparent: str | None = None
    stop: Json[JobStop] | None = None

    @property
    def named(self) -> tuple[str, str, str]:
        """Its id, its name and its project."""
        return self.id, self.name, self.project


class Submission(BaseModel):
    """The first answer to a request that carried an idempotency key, and what was asked for."""

    model_config = ConfigDict(frozen=True)

    key: str
    fingerprint: str
    job_id: str
    answer: str


class JobChange(TypedDict, total=False):
    """What may change about a stored job."""

    state: JobState
    reason: str | None
    stop_requested: bool
    on_ray: bool
    started_at: datetime
    ended_at: datetime
    attempts: int
    token_hash: str
    first_attempt: int
    preempted_by: str | None
    requeued: str | None


class DuplicateKeyError(Exception):
    """Another request with the same idempotency key was recorded first."""


class JobStore:
    """Reads and writes jobs. Every change of state leaves an event and messages in the outbox, and every deed an entry
    in the audit, in the same transaction.
    """

    def __init__(self, database: Database, outbox: Outbox | None = None) -> None:
        self._database = database
        self._outbox = outbox or Outbox()

    async def add(self, job_id: str, spec: JobSpec, at: datetime, submission: Submission | None, deed: Deed) -> None:
        """Record a queued job. Raises `DuplicateKeyError`."""
        job = {
            "id": job_id,
            "name": spec.name,
            "project": spec.queue.project,
            "priority": spec.queue.priority,
            "state": JobState.QUEUED,
            "submitted_at": at,
            "starts_by": _starts_by(spec, at),
            "traceparent": traceparent(),
            "spec": spec.model_dump_json(),
        }
        try:
            async with self._database.write() as connection:
                await connection.execute(insert(jobs).values(job))
                named = (job_id, spec.name, spec.queue.project)
                await write_event(connection, self._outbox, at, named, None, JobState.QUEUED, None)
                if submission is not None:
                    await connection.execute(insert(submissions).values(submission.model_dump()))
                added = JobFacts(name=spec.name, state=JobState.QUEUED)
                await write_down(connection, deed, at, (job_id, spec.queue.project), None, added)
        except IntegrityError as error:
            if submission is None:
                raise
            raise DuplicateKeyError(submission.key) from error

    async def submission(self, key: str) -> Submission | None:
        async with self._database.read() as connection:
            row = (await connection.execute(select(submissions).where(submissions.c.key == key))).first()
        return None if row is None else Submission.model_validate(row._asdict())

    async def get(self, job_id: str) -> JobRecord | None:
        async with self._database.read() as connection:
            row = (await connection.execute(select(jobs).where(jobs.c.id == job_id))).first()
        return None if row is None else _record(row)

    async def project(self, job_id: str) -> str | None:
        """The project of a job, or None if there is no such job."""
        async with self._database.read() as connection:
            return (await connection.execute(select(jobs.c.project).where(jobs.c.id == job_id))).scalar()

    async def page(
        self, state: JobState | None, project: str | None, before: int | None, limit: int
    ) -> tuple[list[JobRecord], int | None]:
        """Jobs with a number below `before`, newest first, and the cursor of the next page."""
        query = select(jobs).order_by(jobs.c.number.desc()).limit(limit + 1)
        if state is not None:
            query = query.where(jobs.c.state == state)
        if project is not None:
            query = query.where(jobs.c.project == project)
        if before is not None:
            query = query.where(jobs.c.number < before)
        async with self._database.read() as connection:
            records = [_record(row) for row in await connection.execute(query)]
        more = len(records) > limit
        records = records[:limit]
        return records, records[-1].number if more else None

    async def active(self) -> list[JobRecord]:
        """Every job that has not ended, those of the highest priority first, then in the order of submission."""
        return await self._in(ACTIVE_STATES)

    async def contenders(self, of_each_project: int, at: datetime) -> list[JobRecord]:
        """The active jobs without the rear of a long queue: of each project only the first that wait, and those that
        have waited too long at the time `at`.
        """
        late = and_(jobs.c.state == JobState.QUEUED, jobs.c.started_at.is_(None), jobs.c.starts_by < at)
        started = jobs.c.state.in_(ACTIVE_STATES - {JobState.QUEUED})
        return await self._where(or_(started, jobs.c.number.in_(_front(of_each_project)), late))

    async def started(self) -> list[JobRecord]:
        """Those of the active jobs that have left the queue."""
        return await self._in(ACTIVE_STATES - {JobState.QUEUED})

    async def _in(self, states: Collection[JobState]) -> list[JobRecord]:
        return await self._where(jobs.c.state.in_(states))

    async def _where(self, condition: ColumnElement[bool]) -> list[JobRecord]:
        query = select(jobs).where(condition).order_by(jobs.c.priority.desc(), jobs.c.number)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        # There may be thousands, and requests go first.
        return await asyncio.to_thread(lambda: [_record(row) for row in rows])

    async def states(self, job_ids: Collection[str]) -> dict[str, JobState]:
        """The states of those of the given jobs that are recorded, by id."""
        ids = sorted(job_ids)
        found: dict[str, JobState] = {}
        async with self._database.read() as connection:
            for first in range(0, len(ids), _IDS_AT_ONCE):
                query = select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(ids[first : first + _IDS_AT_ONCE]))
                found |= {row.id: row.state for row in await connection.execute(query)}
        return found

    async def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state, with zeros."""
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        async with self._database.read() as connection:
            found = {row[0]: row[1] for row in await connection.execute(query)}
        return {state: found.get(state, 0) for state in JobState}

    async def change(
        self,
        job_id: str,
        at: datetime,
        when: Collection[JobState],
        deed: Deed | None = None,
        **values: Unpack[JobChange],
    ) -> bool:
        """Change a job that is in one of the states `when`; false if it is in another one by now.

        `deed` is given where a request asks for the change.
        """
        async with self._database.write() as connection:
            before = await _locked(connection, job_id) if deed is not None or "state" in values else None
            done = await connection.execute(
                update(jobs).where(jobs.c.id == job_id, jobs.c.state.in_(when)).values(**values)
            )
            changed = done.rowcount == 1
            if changed and before is not None and "state" in values:
                event = (before.state, values["state"], values.get("reason"))
                await write_event(connection, self._outbox, at, before.named, *event)
            if changed and deed is not None and before is not None:
                was = JobFacts(name=before.name, state=before.state)
                now = JobFacts(name=before.name, state=values.get("state", before.state))
                await write_down(connection, deed, at, (job_id, before.project), was, now)
        return changed

    async def requeue(self, job: JobRecord, at: datetime, why: str, losses: int, not_before: datetime | None) -> bool:
        """Put a job that runs no more back into the queue; false if it was asked to stop, or moved on meanwhile.

        What its last start still reports is not taken any more.
        """
        values = {
            "state": JobState.QUEUED, "reason": why, "requeued": why, "losses": losses, "not_before": not_before,
            "on_ray": False, "has_steps": False, "token_hash": None, "preempted_by": None,
            "stop": None,
        }  # fmt: skip
        unchanged = (jobs.c.id == job.id, jobs.c.state == job.state, jobs.c.stop_requested.is_(False))
        async with self._database.write() as connection:
            done = await connection.execute(update(jobs).where(*unchanged).values(**values))
            if done.rowcount == 1:
                await write_event(connection, self._outbox, at, job.named, job.state, JobState.QUEUED, why)
        return done.rowcount == 1

    async def explain(self, reasons: Mapping[str, str]) -> None:
        """Say of queued jobs, by id, why they wait."""
        waits = update(jobs).where(jobs.c.id == bindparam("job"), jobs.c.state == JobState.QUEUED)
        async with self._database.write() as connection:
            await connection.execute(
                waits.values(reason=bindparam("why")), [{"job": job, "why": why} for job, why in reasons.items()]
            )

    async def explain_others(self, of_each_project: int, reason: str) -> None:
        """Say of queued jobs behind the first of each project why they wait, if nothing was said of them yet."""
        rest = jobs.c.number.not_in(_front(of_each_project))
        unsaid = (jobs.c.state == JobState.QUEUED, jobs.c.reason.is_(None), rest)
        async with self._database.write() as connection:
            await connection.execute(update(jobs).where(*unsaid).values(reason=reason))

    async def remove(self, job_id: str, at: datetime, deed: Deed) -> bool:
        """Delete an ended job with all that belongs to it; false if it has not ended."""
        async with self._database.write() as connection:
            job = await _locked(connection, job_id)
            if job is None or not job.state.ended:
                return False
            await connection.execute(delete(jobs).where(jobs.c.id == job_id))
            was = JobFacts(name=job.name, state=job.state, spec=job.spec)
            await write_down(connection, deed, at, (job_id, job.project), was, None)
        return True


def _front(of_each_project: int) -> Select[int]:
    """The numbers of the first jobs in the queue of each project."""
    place = func.row_number().over(partition_by=jobs.c.project, order_by=(jobs.c.priority.desc(), jobs.c.number))
    queue = select(jobs.c.number, place.label("place")).where(jobs.c.state == JobState.QUEUED).subquery()
    return select(queue.c.number).where(queue.c.place <= of_each_project)


def _starts_by(spec: JobSpec, submitted_at: datetime) -> datetime | None:
    deadline_s = spec.queue.deadline_s
    return None if deadline_s is None else submitted_at + timedelta(seconds=deadline_s)


async def _locked(connection: AsyncConnection, job_id: str) -> JobRecord | None:
    """The job as it stays until the transaction of `connection` ends, but for what that changes itself."""
    row = (await connection.execute(select(jobs).where(jobs.c.id == job_id).with_for_update())).first()
    return None if row is None else _record(row)


def _record(row: Row[Any]) -> JobRecord:
    return JobRecord.model_validate({**row._asdict(), "spec": _spec(row.spec)})


@lru_cache(maxsize=_SPECS_KEPT)
def _spec(text: str) -> JobSpec:
    """A job's own does not change, and is read again each time that somebody looks at the job."""
    return JobSpec.model_validate_json(text)
