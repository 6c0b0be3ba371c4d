r"""Drives each job from its recorded intent towards what Ray reports, one step at a time.

The database is the record and Ray is evidence. Each call of `step` makes at most one transition, so that a service that
dies anywhere goes on where it was. A job is written down as `starting` before Ray is asked, and `on_ray` once Ray was
seen to know it: only then does "Ray knows nothing of it" mean that the job is lost.

    queued -> starting -> running -> succeeded | failed | lost
       \________\___________\-> stopping -> stopped (or whatever Ray says it became before the stop arrived)

Two ways lead back to the queue, from where a job starts again, under its id, at its last checkpoint: one that makes
room for a higher priority goes back when Ray says that it has stopped; one that Ray has lost, as often as its
`retries.max` says. What Ray still knows of an earlier start is forgotten right before the next one.

A job that is told to stop saves first. That it ends in time is Ray's affair, and so does not hang on this service: Ray
kills the job's process `_ENDS_WITHIN_S` after the time that the job has for saving.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Unpack

import structlog

from service.cluster.gateway import (
    RayGateway,
    RayJob,
    RayRefusedError,
    RayStatus,
    RaySubmission,
    RayUnavailableError,
)
from service.jobs.admission import Expire, Preempt, Start, Wait, decide
from service.jobs.logs import LogReader
from service.jobs.quotas import Quotas
from service.jobs.reasons import named_to
from service.jobs.stops import before_it_started, what_was_saved, with_more
from service.jobs.tokens import ReportTokens, hash_token
from service.jobs.verdicts import status, verdict
from service.models import JobState
from service.settings import Settings
from service.store.jobs import ACTIVE_STATES, JobChange, JobRecord, JobStore
from service.tracing.spans import step_of_job
from workers.run import REPORT_TOKEN_METADATA

log = structlog.get_logger(__name__)

# For Ray: how a stop reaches the training loop, and how soon Ray Train notices the end of a worker group.
_RAY_ENVIRONMENT = {
    "RAY_JOB_STOP_SIGNAL": "SIGINT",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}
# For a job that has saved or given up: until its workers have ended, and what they have reported is delivered.
_ENDS_WITHIN_S = 30

# Ray ends a driver that has lost its head node after 60 s; until then it may write into the storage of its job.
_DRIVER_OUTLIVES_RAY = timedelta(seconds=75)
_LOOK_FOR_ORPHANS_EVERY = timedelta(seconds=30)
# Ray looks once a second whether the process over a job is alive. If it finds it dead and the job forgotten, it writes
# down under its id that the job has failed, even if that is another start by then.
_RAY_STOPS_LOOKING = timedelta(seconds=10)
# How long Ray may count as used what has just been released.
_FIGURES_SETTLE = timedelta(seconds=10)
# How much of the queue of each project is looked at in one round, and how the rest is told.
_LOOK_AT_FIRST = 100
_BEHIND = f"behind the first {_LOOK_AT_FIRST} jobs of its project"


class Reconciler:
    """The only one that moves jobs from state to state. `now` is asked for the times that are recorded."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobStore,
        gateway: RayGateway,
        logs: LogReader,
        now: Callable[[], datetime],
        quotas: Quotas,
        tokens: ReportTokens,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._gateway = gateway
        self._logs = logs
        self._now = now
        self._quotas = quotas
        self._tokens = tokens
        self._released_at = self._looked_at = now()
        self._aside = 0

    async def run_once(self) -> None:
        """Let queued jobs start that may, then take one step for every job that has left the queue."""
        # Jobs that take no part in the order must not hide those behind them.
        front = _LOOK_AT_FIRST + self._aside
        active = await self._jobs.contenders(front, self._now())
        if any(job.state is JobState.QUEUED for job in active):
            await self._admit(active)
            if len(active) >= _LOOK_AT_FIRST:
                await self._jobs.explain_others(front, _BEHIND)
        for job in await self._jobs.started():
            await self.step(job)
        if self._now() - self._looked_at >= _LOOK_FOR_ORPHANS_EVERY:
            self._looked_at = self._now()
            await self._stop_orphans()

    async def step(self, job: JobRecord) -> None:
        """One step for a job that has left the queue."""
        if job.stop_requested and job.token_hash is None:
            await self._end(job, JobState.STOPPED, before_it_started(job))
            return
        try:
            seen = await self._gateway.job(job.id)
            if seen is None:
                await self._unknown_to_ray(job)
            elif job.token_hash is None:
                await self._of_an_earlier_start(job, seen)
            elif not job.on_ray:
                await self._seen_on_ray(job)
            elif seen.status in (RayStatus.PENDING, RayStatus.RUNNING):
                await self._alive(job)
            else:
                await self._ended_on_ray(job, seen)
        except RayUnavailableError as error:
            await self._note(job, str(error))

    async def _admit(self, active: list[JobRecord]) -> None:
        try:
            cluster = await self._gateway.resources()
        except RayUnavailableError as error:
            await self._explain(
                [Wait(job, f"waits for Ray: {error}") for job in active if job.state is JobState.QUEUED]
            )
            return
        now = self._now()
        settled = now - self._released_at > _FIGURES_SETTLE
        decisions = await asyncio.to_thread(decide, active, cluster, self._quotas, now, may_preempt=settled)
        waits = [decision for decision in decisions if isinstance(decision, Wait)]
        self._aside = max(Counter(wait.job.project for wait in waits if wait.aside).values(), default=0)
        await self._explain(waits)
        for decision in decisions:
            match decision:
                case Start(job):
                    await self._start(job)
                case Expire(job, reason):
                    await self._end(job, JobState.FAILED, reason)
                case Preempt(job, by):
                    await self._preempt(job, by)

    async def _explain(self, waits: list[Wait]) -> None:
        reasons = {wait.job.id: wait.reason for wait in waits if wait.job.reason != wait.reason}
        if reasons:
            await self._jobs.explain(reasons)
            for job_id, reason in reasons.items():
                log.debug("job_waits", job_id=job_id, reason=reason)

    @step_of_job("job queued", lambda job: job.submitted_at if job.started_at is None else None)
    async def _start(self, job: JobRecord) -> None:
        """Record the start. The next step finds nothing on Ray and submits the job, as it does after a crash."""
        now = self._now()
        await self._jobs.change(
            job.id, now, {JobState.QUEUED}, state=JobState.STARTING, reason=job.requeued, requeued=None,
            started_at=now, first_attempt=job.attempts, attempts=job.attempts + 1,
        )  # fmt: skip

    @step_of_job("job preempted")
    async def _preempt(self, job: JobRecord, by: JobRecord) -> None:
        """Record that a job makes room; the next step sees to it."""
        name = named_to(by.id, by.project, job.project)
        reason = f"makes room for {name}, which has priority {by.priority}; saves first, and goes on from there later"
        done = await self._jobs.change(
            job.id, self._now(), {job.state}, state=JobState.STOPPING, preempted_by=by.id, reason=reason
        )
        if done:
            log.info("job_preempted", job_id=job.id, by=by.id)

    @step_of_job("job requeued")
    async def _requeue(self, job: JobRecord, why: str, losses: int, not_before: datetime | None) -> None:
        now = self._released_at = self._now()
        if await self._jobs.requeue(job, now, why, losses, not_before):
            log.info("job_requeued", job_id=job.id, reason=why)

    @step_of_job("job submitted to ray")
    async def _submit(self, job: JobRecord) -> None:
        token = self._tokens.of(job.id, job.first_attempt)
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
        # Of a job that was started before, Ray's own log goes on.
        self._logs.forget(job.id)
        await self._change(job, on_ray=True, reason=None)

    def _submission(self, job: JobRecord, token: str) -> RaySubmission:
        environment = _RAY_ENVIRONMENT | {
            "RAY_JOB_STOP_WAIT_TIME_S": f"{math.ceil(job.spec.checkpoint.stop_grace_s) + _ENDS_WITHIN_S}",
            "OVERLANE_JOB": job.spec.model_dump_json(),
            "OVERLANE_JOB_ID": job.id,
            "OVERLANE_REPORT_URL": self._settings.report_url or self._settings.url,
            "OVERLANE_STORAGE": str(self._settings.storage),
        }
        if job.traceparent is not None:
            # The name under which OpenTelemetry looks for it, if the model's own code makes spans.
            environment["TRACEPARENT"] = job.traceparent
        return RaySubmission(job.id, self._settings.job_command, environment, {REPORT_TOKEN_METADATA: token})

    async def _unknown_to_ray(self, job: JobRecord) -> None:
        if job.preempted_by is not None:
            if job.stop_requested:
                await self._end(job, JobState.STOPPED, what_was_saved(job))
            else:
                await self._made_room(job, job.preempted_by)
        elif job.on_ray:
            await self._lost(job)
        elif job.stop_requested:
            await self._end(job, JobState.STOPPED, before_it_started(job))
        else:
            await self._submit(job)

    async def _of_an_earlier_start(self, job: JobRecord, seen: RayJob) -> None:
        """Ray knows the job, and was not given this start yet; it takes an id again only once it has forgotten it."""
        if seen.status in (RayStatus.PENDING, RayStatus.RUNNING):
            await self._gateway.stop(job.id)
        else:
            await self._gateway.forget(job.id)

    async def _made_room(self, job: JobRecord, by: str) -> None:
        name = named_to(by, await self._jobs.project(by), job.project)
        why = with_more(f"made room for {name}", what_was_saved(job))
        await self._requeue(job, why, job.losses, self._now() + _RAY_STOPS_LOOKING)

    async def _lost(self, job: JobRecord) -> None:
        most, losses = job.spec.retries.max, job.losses + 1
        if job.stop_requested or losses > most:
            times = "" if most == 0 or job.stop_requested else f", after retries.max={most} new starts"
            await self._end(job, JobState.LOST, f"Ray knows nothing of this job any more{times}")
            return
        # The embedded Ray takes all its processes with it.
        not_before = self._now() + _DRIVER_OUTLIVES_RAY if self._settings.ray_address else None
        await self._requeue(job, f"Ray has lost it ({losses} of retries.max={most})", losses, not_before)

    async def _stop_orphans(self) -> None:
        """End what runs on Ray for a job that has ended: a submission that arrived after the job was given up."""
        with suppress(RayUnavailableError):
            alive = [run for run in await self._gateway.runs() if run.status in (RayStatus.PENDING, RayStatus.RUNNING)]
            states = await self._jobs.states([run.submission_id for run in alive if run.submission_id])
            for job_id in (job_id for job_id, state in states.items() if state.ended):
                log.warning("job_runs_after_its_end", job_id=job_id)
                await self._gateway.stop(job_id)

    async def _alive(self, job: JobRecord) -> None:
        if job.stop_requested or job.preempted_by is not None:
            await self._stop(job)
        elif job.state is JobState.STARTING and job.has_steps:
            await self._running(job)
        elif job.reason is not None:
            await self._change(job, reason=None)

    @step_of_job("job stopped on ray")
    async def _stop(self, job: JobRecord) -> None:
        await self._gateway.stop(job.id)

    @step_of_job("job started", lambda job: job.started_at)
    async def _running(self, job: JobRecord) -> None:
        """Record that its first steps are there."""
        await self._jobs.change(job.id, self._now(), {JobState.STARTING}, state=JobState.RUNNING, reason=None)
        log.info("job_running", job_id=job.id)

    async def _ended_on_ray(self, job: JobRecord, seen: RayJob) -> None:
        # A job reports its failure before it ends, and that may have been while Ray was being asked.
        job = await self._jobs.get(job.id) or job
        if status(job, seen) is RayStatus.STOPPED and job.preempted_by is not None and not job.stop_requested:
            await self._logs.keep(job.id)
            await self._made_room(job, job.preempted_by)
            return
        await self._end(job, *verdict(job, seen))

    @step_of_job("job ended")
    async def _end(self, job: JobRecord, state: JobState, reason: str | None) -> None:
        if job.on_ray and state is not JobState.LOST:
            await self._logs.keep(job.id)
        now = self._released_at = self._now()
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
