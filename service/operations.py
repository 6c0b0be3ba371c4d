"""What operators ask: is it alive, is it ready, what does the cluster hold, what should Prometheus know."""

from sqlalchemy.exc import SQLAlchemyError

from service.cluster.gateway import RayGateway, RayResources, RayUnavailableError
from service.jobs.capacity import free_resources
from service.models import Cluster, ClusterResources, JobState, NodeInfo
from service.problems import FieldError, Problem, ProblemType
from service.store.database import Database
from service.store.jobs import JobStore
from service.store.steps import StepStore
from service.telemetry.metrics import exposition


class Operations:
    """The logic behind probes, metrics and the cluster route."""

    def __init__(self, database: Database, jobs: JobStore, steps: StepStore, gateway: RayGateway) -> None:
        self._database = database
        self._jobs = jobs
        self._steps = steps
        self._gateway = gateway

    async def check_ready(self) -> None:
        """Raise `Problem` unless the database and Ray answer."""
        faults = []
        try:
            await self._database.ping()
        except SQLAlchemyError as error:
            faults.append(FieldError(field="database", message=str(error)))
        try:
            await self._gateway.resources()
        except RayUnavailableError as error:
            faults.append(FieldError(field="ray", message=str(error)))
        if faults:
            detail = "; ".join(f"{fault.field}: {fault.message}" for fault in faults)
            raise Problem(ProblemType.NOT_READY, detail, faults)

    async def cluster(self) -> Cluster:
        """Raises `Problem` if Ray does not answer."""
        try:
            found = await self._gateway.resources()
        except RayUnavailableError as error:
            raise Problem(ProblemType.RAY_UNAVAILABLE, str(error), headers={"Retry-After": "5"}) from None
        held = [job.spec for job in await self._jobs.active() if job.state is not JobState.QUEUED]
        return Cluster(
            resources=ClusterResources(total=found.total, available=free_resources(found, held)),
            nodes=_nodes(found),
            ray_address=self._gateway.address,
            jobs=await self._jobs.counts(),
        )

    async def metrics(self) -> bytes:
        """The text that Prometheus scrapes."""
        alive = [job.id for job in await self._jobs.active() if job.has_steps]
        return exposition(await self._jobs.counts(), await self._steps.newest_of_each_rank(alive))


def _nodes(found: RayResources) -> list[NodeInfo]:
    return [
        NodeInfo(id=node.id, address=node.address, head=node.head, resources=node.resources) for node in found.nodes
    ]
