"""What operators ask: is it alive, is it ready, what does the cluster hold, what should Prometheus know."""

from datetime import UTC, datetime

import structlog

from service.cluster.gateway import RayGateway, RayResources, RayRun, RayStatus, RayUnavailableError
from service.jobs.capacity import free_resources
from service.models import Cluster, ClusterResources, JobState, NodeInfo, WatchedRun, WatchedRuns
from service.plans import DRY_RUN_PREFIX
from service.problems import FieldError, Problem, ProblemType
from service.store.database import Database
from service.store.engine import DatabaseUnavailableError
from service.store.jobs import JobStore
from service.store.steps import StepStore
from service.telemetry.metrics import exposition

log = structlog.get_logger(__name__)


class Operations:
    """The logic behind probes, metrics and the cluster route."""

    def __init__(self, database: Database, jobs: JobStore, steps: StepStore, gateway: RayGateway) -> None:
        self._database = database
        self._jobs = jobs
        self._steps = steps
        self._gateway = gateway

    async def check_ready(self, tell_why: bool) -> None:
        """Raise `Problem` unless the database and Ray answer. Errors name hosts and users: not everybody is told."""
        found: dict[str, Exception] = {}
        try:
            await self._database.ping()
        except DatabaseUnavailableError as error:
            found["database"] = error
        try:
            await self._gateway.resources()
        except RayUnavailableError as error:
            found["ray"] = error
        if found:
            log.warning("not_ready", **{name: str(error) for name, error in found.items()})
            faults = [
                FieldError(field=name, message=str(error) if tell_why else "does not answer; the log says why")
                for name, error in found.items()
            ]
            detail = "; ".join(f"{fault.field}: {fault.message}" for fault in faults)
            raise Problem(ProblemType.NOT_READY, detail, faults)

    async def cluster(self) -> Cluster:
        """Raises `Problem` if Ray does not answer."""
        try:
            found = await self._gateway.resources()
        except RayUnavailableError as error:
            raise Problem(ProblemType.RAY_UNAVAILABLE, str(error), headers={"Retry-After": "5"}) from None
        held = [job.spec for job in await self._jobs.started()]
        return Cluster(
            resources=ClusterResources(total=found.total, available=free_resources(found, held)),
            nodes=_nodes(found),
            ray_address=self._gateway.address,
            jobs=await self._jobs.counts(),
        )

    async def runs(self, limit: int) -> WatchedRuns:
        """The newest runs of others. Raises `Problem` if Ray does not answer."""
        try:
            found = await self._gateway.runs()
        except RayUnavailableError as error:
            raise Problem(ProblemType.RAY_UNAVAILABLE, str(error), headers={"Retry-After": "5"}) from None
        own = await self._jobs.states([run.submission_id for run in found if run.submission_id])
        strangers = (run for run in found if run.submission_id not in own)
        others = [run for run in strangers if not (run.submission_id or "").startswith(DRY_RUN_PREFIX)]
        others.sort(key=lambda run: run.start_time or 0, reverse=True)
        return WatchedRuns(items=[_watched(run) for run in others[:limit]])

    async def metrics(self) -> bytes:
        """The text that Prometheus scrapes."""
        alive = [job.id for job in await self._jobs.started() if job.has_steps]
        return exposition(await self._jobs.counts(), await self._steps.newest_of_each_rank(alive))


_STATES = {
    RayStatus.PENDING: JobState.STARTING,
    RayStatus.RUNNING: JobState.RUNNING,
    RayStatus.SUCCEEDED: JobState.SUCCEEDED,
    RayStatus.FAILED: JobState.FAILED,
    RayStatus.STOPPED: JobState.STOPPED,
}


def _watched(run: RayRun) -> WatchedRun:
    assert run.submission_id is not None
    state = _STATES[run.status]
    # Ray has a message for every state, such as that the job is running.
    return WatchedRun(
        id=run.submission_id, state=state, reason=run.message if state is JobState.FAILED else None,
        entrypoint=run.entrypoint, started_at=_moment(run.start_time), ended_at=_moment(run.end_time),
    )  # fmt: skip


def _moment(milliseconds: int | None) -> datetime | None:
    # Ray writes 0 for what has not come.
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None


def _nodes(found: RayResources) -> list[NodeInfo]:
    return [
        NodeInfo(id=node.id, address=node.address, head=node.head, resources=node.resources) for node in found.nodes
    ]
