"""What people do with jobs: submit, look, stop, delete."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import structlog

from service.cluster.gateway import RayGateway, RayUnavailableError
from service.cursors import cursor_of, number_of
from service.jobs.capacity import never_fits, resources_of
from service.jobs.logs import LogReader
from service.jobs.quotas import Quotas
from service.jobs.reasons import readable
from service.models import Job, JobPage, JobState
from service.problems import FieldError, Problem, ProblemType
from service.security.access import check_project
from service.security.audit import AuditAction, Deed
from service.security.roles import Caller
from service.store.jobs import DuplicateKeyError, JobRecord, JobStore, Submission
from service.telemetry.reports import Telemetry
from workers.job import InvalidJob, JobSpec
from workers.sources import check

log = structlog.get_logger(__name__)

STOPPABLE_STATES = frozenset({JobState.QUEUED, JobState.STARTING, JobState.RUNNING})

# Digits and letters without those that are easily mistaken for others.
_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"


class JobService:
    """The logic behind the job routes. `poke` wakes the reconciler; `jobs_run_here` says that jobs see this disk."""

    def __init__(
        self,
        jobs: JobStore,
        telemetry: Telemetry,
        gateway: RayGateway,
        logs: LogReader,
        now: Callable[[], datetime],
        poke: Callable[[], None],
        quotas: Quotas,
        jobs_run_here: bool,
    ) -> None:
        self._jobs = jobs
        self._telemetry = telemetry
        self._gateway = gateway
        self._logs = logs
        self._now = now
        self._poke = poke
        self._quotas = quotas
        self._jobs_run_here = jobs_run_here

    async def submit(self, caller: Caller, spec: JobSpec, key: str | None) -> Job:
        """Record a job that can run here. With `key` the first answer is given again; nothing is recorded twice.

        Raises `Problem`: a project that is not the caller's, another job file under the same key of the project,
        missing data, too large for the cluster or for the project's quota, no cluster.
        """
        check_project(caller, spec.queue.project)
        fingerprint = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
        if key is not None:
            key = f"{spec.queue.project}/{key}"
            if (answer := await self._answered(key, fingerprint)) is not None:
                return answer
        await self._check(spec)
        now = self._now()
        job_id = new_job_id(now)
        job = _queued(job_id, spec, now)
        submission = None
        if key is not None:
            submission = Submission(key=key, fingerprint=fingerprint, job_id=job_id, answer=job.model_dump_json())
        try:
            await self._jobs.add(job_id, spec, now, submission, Deed(caller.name, AuditAction.SUBMIT))
        except DuplicateKeyError:
            assert key is not None
            answer = await self._answered(key, fingerprint)
            assert answer is not None
            return answer
        log.info("job_queued", job_id=job_id, name=spec.name, project=spec.queue.project)
        self._poke()
        return job

    async def get(self, caller: Caller, job_id: str) -> Job:
        """Raises `Problem` for an unknown job."""
        return await self._shown(caller, await self.record(job_id))

    async def record(self, job_id: str) -> JobRecord:
        """Raises `Problem` for an unknown job."""
        record = await self._jobs.get(job_id)
        if record is None:
            raise Problem(ProblemType.UNKNOWN_JOB, f"no job has the id {job_id!r}")
        return record

    async def page(
        self, caller: Caller, state: JobState | None, project: str | None, cursor: str | None, limit: int
    ) -> JobPage:
        """Jobs that the caller sees. Raises `Problem` for a cursor that no page has given."""
        before = number_of(cursor)
        if project is not None and not caller.sees(project):
            return JobPage(items=[], next_cursor=None)
        narrowed = project if caller.sees_all else caller.project
        records, following = await self._jobs.page(state, narrowed, before, limit)
        items = [await self._shown(caller, record) for record in records]
        return JobPage(items=items, next_cursor=cursor_of(following))

    async def stop(self, caller: Caller, job_id: str) -> Job:
        """Record the wish to stop; the reconciler sees to it. Changes nothing about a job that is ending or ended."""
        record = await self.record(job_id)
        # One that makes room for another job is stopping too, and would go back to the queue.
        states = STOPPABLE_STATES if record.stop_requested else STOPPABLE_STATES | {JobState.STOPPING}
        deed = Deed(caller.name, AuditAction.STOP)
        asked = await self._jobs.change(
            job_id, self._now(), states, deed, state=JobState.STOPPING, stop_requested=True, reason=None
        )
        if asked:
            log.info("job_stop_requested", job_id=job_id)
            self._poke()
        return await self.get(caller, job_id)

    async def delete(self, caller: Caller, job_id: str) -> None:
        """Delete an ended job, its steps and its log. Raises `Problem` unless it has ended."""
        if not await self._jobs.remove(job_id, self._now(), Deed(caller.name, AuditAction.DELETE)):
            record = await self.record(job_id)
            raise Problem(ProblemType.JOB_ACTIVE, f"{job_id} is {record.state}; stop it first")
        self._logs.forget(job_id)
        with suppress(RayUnavailableError):
            # What Ray still says about it would be taken for a run of somebody else.
            await self._gateway.forget(job_id)
        log.info("job_deleted", job_id=job_id)

    async def _answered(self, key: str, fingerprint: str) -> Job | None:
        first = await self._jobs.submission(key)
        if first is None:
            return None
        if first.fingerprint != fingerprint:
            sent = key.partition("/")[2]
            detail = f"Idempotency-Key {sent!r} was used for {first.job_id} with another job file; use a new key"
            raise Problem(ProblemType.KEY_REUSED, detail)
        return Job.model_validate_json(first.answer)

    async def _check(self, spec: JobSpec) -> None:
        try:
            # Where jobs run elsewhere, this disk would say nothing of theirs, and tell strangers of ours.
            await asyncio.to_thread(check, spec.data, on_disk=self._jobs_run_here)
        except InvalidJob as error:
            raise invalid_job(error) from None
        try:
            cluster = await self._gateway.resources()
        except RayUnavailableError as error:
            raise Problem(ProblemType.RAY_UNAVAILABLE, str(error), headers={"Retry-After": "5"}) from None
        reason = never_fits(spec, cluster) or self._quotas.never_allows(spec.queue.project, spec.workers)
        if reason is not None:
            fault = FieldError(field="workers", message=reason)
            raise Problem(ProblemType.INFEASIBLE, reason, [fault])

    async def _shown(self, caller: Caller, record: JobRecord) -> Job:
        fields = record.model_dump(
            include={"id", "name", "project", "state", "submitted_at", "started_at", "ended_at"}
            | {"attempts", "dropped_samples"}
        )
        return Job(
            **fields,
            reason=None if record.reason is None else readable(record.reason, caller),
            spec=record.spec,
            resources=resources_of(record.spec),
            plan=record.plan,
            result=record.result,
            failure=record.failure,
            latest=await self._telemetry.latest(record),
        )


def invalid_job(error: InvalidJob) -> Problem:
    """A job file's faults, each with its field."""
    faults = []
    for problem in error.problems:
        field, _, message = problem.partition(": ")
        faults.append(FieldError(field=field, message=message))
    return Problem(ProblemType.INVALID_JOB, "; ".join(error.problems), faults)


def new_job_id(at: datetime) -> str:
    """An id that is safe as Ray's submission id and sorts by the second of submission."""
    suffix = "".join(secrets.choice(_ALPHABET) for _ in range(6))
    return f"job-{at.astimezone(UTC):%Y%m%d-%H%M%S}-{suffix}"


def _queued(job_id: str, spec: JobSpec, at: datetime) -> Job:
    return Job(
        id=job_id, name=spec.name, project=spec.queue.project, state=JobState.QUEUED, reason=None,
        submitted_at=at, started_at=None, ended_at=None, attempts=0, spec=spec, resources=resources_of(spec),
        plan=None, result=None, failure=None, dropped_samples=0, latest=None,
    )  # fmt: skip
