"""What would become of a job, found out without running it.

The control plane looks at the job file and at the room in the cluster. What needs the user's own code or data is looked
at by a dry run where jobs run (`workers.dry_run`): there are the packages, files and credentials that the job would
have, and the control plane imports nothing of its users.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from service.cluster.gateway import (
    RayGateway,
    RayJob,
    RayRefusedError,
    RayStatus,
    RaySubmission,
    RayUnavailableError,
)
from service.jobs.admission import Wait, decide
from service.jobs.capacity import never_fits, resources_of
from service.jobs.quotas import Quotas
from service.jobs.reasons import readable
from service.models import JobState, Plan
from service.problems import Problem, ProblemType
from service.security.access import check_project
from service.security.roles import Caller
from service.store.jobs import JobRecord, JobStore
from workers.job import JobSpec
from workers.plans import DRY_RUN_TIME_LIMIT_S, Check, CheckName, Finding, Outcome, findings_in

log = structlog.get_logger(__name__)

DRY_RUN_PREFIX = "plan-"
"""What the ids of dry runs begin with on Ray."""
PLAN_TIMEOUT_S = DRY_RUN_TIME_LIMIT_S + 60.0
"""How long a plan may take: its dry run, and as much again as Ray may need to start and end it."""

# A dry run may take a worker's memory, and runs beside the jobs.
_AT_ONCE = 2
_POLL_S = 0.5
_POLLS = round((DRY_RUN_TIME_LIMIT_S + 30) / _POLL_S)
_POLLS_AFTER_STOP = 20
# Ray looks after a job once a second. One that is removed before Ray has seen its end comes back as a failed one.
_RAY_SETTLES_S = 1.0
_REMOVALS = 3

_OF_THE_DRY_RUN = (CheckName.DATA, CheckName.MODEL, CheckName.TABLES)
_GOING_ON = (RayStatus.PENDING, RayStatus.RUNNING)


class PlanService:
    """The logic behind the plans. `command` is the shell command of a dry run."""

    def __init__(
        self,
        command: str,
        jobs: JobStore,
        gateway: RayGateway,
        quotas: Quotas,
        now: Callable[[], datetime],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._command = command
        self._jobs = jobs
        self._gateway = gateway
        self._quotas = quotas
        self._now = now
        self._pause = pause
        self._running = 0

    async def plan(self, caller: Caller, spec: JobSpec) -> Plan:
        """Check the job. Raises `Problem`: a project that is not the caller's, or too many plans at once."""
        check_project(caller, spec.queue.project)
        if self._running >= _AT_ONCE:
            detail = f"{_AT_ONCE} plans are being made; ask again when one of them is done"
            raise Problem(ProblemType.RATE_LIMITED, detail, headers={"Retry-After": "15"})
        self._running += 1
        try:
            room, waits_for = await self._room(caller, spec)
            findings = await self._dry_run(spec)
        finally:
            self._running -= 1
        checks = [_check(CheckName.SCHEMA, Outcome.OK, "the job file is valid"), *(each.check for each in findings)]
        return Plan(
            outcome=_worst([*checks, room]),
            checks=[*checks, room],
            resources=resources_of(spec),
            waits_for=waits_for,
            training=next((each.plan for each in findings if each.plan is not None), None),
        )

    async def _room(self, caller: Caller, spec: JobSpec) -> tuple[Check, str | None]:
        """Whether the cluster can hold the job at all, and what the job would wait for if it were submitted now."""
        try:
            cluster = await self._gateway.resources()
        except RayUnavailableError as error:
            return _check(CheckName.CLUSTER, Outcome.NOT_CHECKED, str(error)), None
        never = self._quotas.never_allows(spec.queue.project, spec.workers) or never_fits(spec, cluster)
        if never is not None:
            return _check(CheckName.CLUSTER, Outcome.NO, f"{never}; ask for fewer or smaller workers"), None
        active = await self._jobs.active()
        newest = _as_submitted(spec, 1 + max((job.number for job in active), default=0), self._now())
        decisions = decide([*active, newest], cluster, self._quotas, self._now())
        waits_for = next((each.reason for each in decisions if isinstance(each, Wait) and each.job is newest), None)
        waits_for = None if waits_for is None else readable(waits_for, caller)
        detail = "it would start now" if waits_for is None else f"it would wait: {waits_for}"
        return _check(CheckName.CLUSTER, Outcome.OK, detail), waits_for

    async def _dry_run(self, spec: JobSpec) -> list[Finding]:
        """One finding for each of `_OF_THE_DRY_RUN`; what the dry run did not get to is not checked."""
        run_id = f"{DRY_RUN_PREFIX}{self._now():%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        found: list[Finding] = []
        try:
            await self._gateway.submit(RaySubmission(run_id, self._command, {"OVERLANE_JOB": spec.model_dump_json()}))
            ended = await self._ended(run_id, _POLLS)
            found = list(findings_in(await self._gateway.logs(run_id) or ""))
            why = _why_incomplete(ended)
        except (RayRefusedError, RayUnavailableError) as error:
            why = f"the dry run cannot be made on Ray: {error}"
        finally:
            await self._remove(run_id)
        by_name = {finding.check.name: finding for finding in found}
        if (failed := next((each.check for each in found if each.check.outcome is not Outcome.OK), None)) is not None:
            why = f"it builds on the check of {failed.name}"
        return [by_name.get(name) or Finding(check=_check(name, Outcome.NOT_CHECKED, why)) for name in _OF_THE_DRY_RUN]

    async def _ended(self, run_id: str, polls: int) -> RayJob | None:
        """The dry run when it has ended; None if it has not by then, or Ray does not know it."""
        for _ in range(polls):
            seen = await self._gateway.job(run_id)
            if seen is None or seen.status not in _GOING_ON:
                return seen
            await self._pause(_POLL_S)
        return None

    async def _remove(self, run_id: str) -> None:
        """Leave nothing on Ray. A dry run that cannot be reached ends by itself."""
        try:
            seen = await self._gateway.job(run_id)
            if seen is not None and seen.status in _GOING_ON:
                await self._gateway.stop(run_id)
                seen = await self._ended(run_id, _POLLS_AFTER_STOP)
            for _ in range(_REMOVALS):
                if seen is None:
                    break
                await self._pause(_RAY_SETTLES_S)
                await self._gateway.forget(run_id)
                await self._pause(_RAY_SETTLES_S)
                seen = await self._gateway.job(run_id)
        except RayUnavailableError as error:
            log.warning("dry_run_not_removed", run_id=run_id, error=str(error))


def _check(name: CheckName, outcome: Outcome, detail: str) -> Check:
    return Check(name=name, outcome=outcome, detail=detail)


def _worst(checks: list[Check]) -> Outcome:
    outcomes = {check.outcome for check in checks}
    return next(each for each in (Outcome.NO, Outcome.NOT_CHECKED, Outcome.OK) if each in outcomes)


def _why_incomplete(ended: RayJob | None) -> str:
    if ended is None:
        return f"the dry run was not done within {DRY_RUN_TIME_LIMIT_S} s"
    said = (ended.message or ended.status.value).strip().partition("\n")[0]
    return f"the dry run broke off, or took longer than {DRY_RUN_TIME_LIMIT_S} s: {said}"


def _as_submitted(spec: JobSpec, number: int, at: datetime) -> JobRecord:
    """The job as it would be recorded now."""
    unknown_yet = {name: None for name, field in JobRecord.model_fields.items() if field.is_required()}
    return JobRecord.model_validate(
        unknown_yet
        | {"number": number, "id": "the planned job", "name": spec.name, "project": spec.queue.project}
        | {"priority": spec.queue.priority, "state": JobState.QUEUED, "submitted_at": at, "attempts": 0}
        | {"stop_requested": False, "on_ray": False, "has_steps": False, "dropped_samples": 0}
        | {"spec": spec}
    )
