r"""Drives each job from its recorded intent towards what Ray reports, one step at a time.

The database is the record and Ray is evidence. Each call of `step` makes at most one transition, so that a service that
dies anywhere goes on where it was. A job is written down as `starting` before Ray is asked, and `on_ray` once Ray was
seen to know it: only then does "Ray knows nothing of it" mean that the job is lost.

    queued -> starting -> running -> succeeded | failed | lost
       \________\___________\-> stopping -> stopped (or whatever Ray says it became before the stop arrived)
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Unpack

import structlog

from service.cluster.gateway import (
    RayGateway,
    RayJob,
    RayRefusedError,
    RayResources,
    RayStatus,
    RaySubmission,
    RayUnavailableError,
)
from service.jobs.capacity import free_resources, never_fits, waits_for
from service.jobs.logs import LogReader
from service.jobs.tokens import hash_token, new_token
from service.models import JobState
from service.settings import Settings
from service.store.jobs import ACTIVE_STATES, JobChange, JobRecord, JobStore
from workers.job import JobSpec

log = structlog.get_logger(__name__)

# For Ray: how a stop reaches the training loop, and how soon Ray Train notices the end of a worker group.
_RAY_ENVIRONMENT = {
    "RAY_JOB_STOP_SIGNAL": "SIGINT",
    "RAY_JOB_STOP_WAIT_TIME_S": "30",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}


class Reconciler:
    """The only one that moves jobs from state to state. `now` is asked for the times that are recorded."""

    def __init__(
        self, settings: Settings, jobs: JobStore, gateway: RayGateway, logs: LogReader, now: Callable[[], datetime]
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._gateway = gateway
        self._logs = logs
        self._now = now
        # Tokens of submissions of which Ray's answer is outstanding. Whichever of several tries Ray takes, the job
        # must hold the token whose hash is recorded.
        self._tokens: dict[str, str] = {}

    async def run_once(self) -> None:
        """Let queued jobs start that fit now, then take one step for every job that has left the queue."""
        queued = [job for job in await self._jobs.active() if job.state is JobState.QUEUED]
        if queued:
            await self._admit(queued)
        for job in await self._jobs.active():
            if job.state is not JobState.QUEUED:
                await self.step(job)

    async def step(self, job: JobRecord) -> None:
        """One step for a job that has left the queue."""
        if job.stop_requested and job.token_hash is None:
            await self._end(job, JobState.STOPPED, "stopped before it started")
            return
        try:
            seen = await self._gateway.job(job.id)
            if seen is None:
                await self._unknown_to_ray(job)
            elif not job.on_ray:
                await self._seen_on_ray(job)
            elif seen.status in (RayStatus.PENDING, RayStatus.RUNNING):
                await self._alive(job)
            else:
                await self._ended_on_ray(job, seen)
        except RayUnavailableError as error:
            await self._note(job, str(error))

    async def _admit(self, queued: list[JobRecord]) -> None:
        """Let jobs out of the queue in their order, up to the first one that does not fit: none is overtaken."""
        try:
            cluster = await self._gateway.resources()
        except RayUnavailableError as error:
            for job in queued:
                await self._note(job, f"waits for Ray: {error}")
            return
        held = [job.spec for job in await self._jobs.active() if job.state is not JobState.QUEUED]
        first_waiting: JobRecord | None = None
        for job in queued:
            if self._too_late(job):
                await self._end(job, JobState.FAILED, f"did not start within deadline_s={job.spec.queue.deadline_s:g}")
            elif first_waiting is not None:
                await self._note(job, f"waits behind {first_waiting.id}")
            elif (waiting := _waits_for(job, cluster, held)) is not None:
                first_waiting = job
                await self._note(job, waiting)
            else:
                held.append(job.spec)
                await self._start(job)

    def _too_late(self, job: JobRecord) -> bool:
        deadline_s = job.spec.queue.deadline_s
        return deadline_s is not None and self._now() - job.submitted_at > timedelta(seconds=deadline_s)

    async def _start(self, job: JobRecord) -> None:
        """Record the start. The next step finds nothing on Ray and submits the job, as it does after a crash."""
        now = self._now()
        await self._jobs.change(
            job.id, now, {JobState.QUEUED}, state=JobState.STARTING, reason=None, started_at=now, attempts=1
        )

    async def _submit(self, job: JobRecord) -> None:
        token = self._tokens.setdefault(job.id, new_token())
        await self._change(job, token_hash=hash_token(token))
        try:
            await self._gateway.submit(self._submission(job, token))
        except RayRefusedError as error:
            # Ray also refuses an id that it knows: an earlier submission whose answer was lost.
            if await self._gateway.job(job.id) is None:
                await self._end(job, JobState.FAILED, f"Ray refused the job: {error}")
        else:
            await self._seen_on_ray(job)
            log.info("job_submitted", job_id=job.id)

    async def _seen_on_ray(self, job: JobRecord) -> None:
        await self._change(job, on_ray=True, reason=None)
        self._tokens.pop(job.id, None)

    def _submission(self, job: JobRecord, token: str) -> RaySubmission:
        environment = _RAY_ENVIRONMENT | {
            "OVERLANE_JOB": job.spec.model_dump_json(),
            "OVERLANE_JOB_ID": job.id,
            "OVERLANE_REPORT_URL": self._settings.report_url or self._settings.url,
            "OVERLANE_REPORT_TOKEN": token,
            "OVERLANE_STORAGE": str(self._settings.storage),
        }
        return RaySubmission(job.id, self._settings.job_command, environment)

    async def _unknown_to_ray(self, job: JobRecord) -> None:
        if job.on_ray:
            await self._end(job, JobState.LOST, "Ray knows nothing of this job any more")
        elif job.stop_requested:
            await self._end(job, JobState.STOPPED, "stopped before it started")
        else:
            await self._submit(job)

    async def _alive(self, job: JobRecord) -> None:
        if job.stop_requested:
            await self._gateway.stop(job.id)
        elif job.state is JobState.STARTING and job.has_steps:
            await self._jobs.change(job.id, self._now(), {JobState.STARTING}, state=JobState.RUNNING, reason=None)
            log.info("job_running", job_id=job.id)
        elif job.reason is not None:
            await self._change(job, reason=None)

    async def _ended_on_ray(self, job: JobRecord, seen: RayJob) -> None:
        # A job reports its failure before it ends, and that may have been while Ray was being asked.
        job = await self._jobs.get(job.id) or job
        await self._end(job, *_verdict(job, seen))

    async def _end(self, job: JobRecord, state: JobState, reason: str | None) -> None:
        if job.on_ray and state is not JobState.LOST:
            await self._logs.keep(job.id)
        self._tokens.pop(job.id, None)
        now = self._now()
        ended = await self._jobs.change(
            job.id, now, {job.state, JobState.STOPPING}, state=state, reason=reason, ended_at=now
        )
        if ended:
            log.info("job_ended", job_id=job.id, state=state.value, reason=reason)

    async def _note(self, job: JobRecord, reason: str) -> None:
        """Say why a job does not get on."""
        if job.reason != reason:
            log.info("job_waits", job_id=job.id, state=job.state.value, reason=reason)
            await self._change(job, reason=reason)

    async def _change(self, job: JobRecord, **values: Unpack[JobChange]) -> None:
        await self._jobs.change(job.id, self._now(), ACTIVE_STATES, **values)


class ReconcilerLoop:
    """Calls the reconciler again and again in the background, and at once when poked."""

    def __init__(self, reconciler: Reconciler, pause_s: float = 0.5) -> None:
        self._reconciler = reconciler
        self._pause_s = pause_s
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """Something happened that the reconciler should look at."""
        self._poked.set()

    async def run(self) -> None:
        """Run until cancelled. An error is logged and the next round tries again."""
        while True:
            self._poked.clear()
            try:
                await self._reconciler.run_once()
            except Exception:
                log.exception("reconciler_failed")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), self._pause_s)


def _waits_for(job: JobRecord, cluster: RayResources, held: list[JobSpec]) -> str | None:
    return never_fits(job.spec, cluster) or waits_for(job.spec, free_resources(cluster, held), cluster)


def _verdict(job: JobRecord, seen: RayJob) -> tuple[JobState, str | None]:
    """What an ended Ray job means."""
    if seen.status is RayStatus.SUCCEEDED:
        return JobState.SUCCEEDED, None
    if seen.status is RayStatus.STOPPED:
        return JobState.STOPPED, None if job.stop_requested else "stopped through Ray"
    return JobState.FAILED, job.failure.message if job.failure else (seen.message or "Ray says no more than FAILED")
