"""The one seam to Ray: jobs and resources of a cluster, over HTTP only.

The service is no Ray driver on purpose: Ray ends a driver that loses its head node.
"""

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from workers.capacity import COUNTED_RESOURCES

# How long Ray may take to answer, in seconds; a submission waits for the job's supervisor to be placed.
_TIMEOUT_S = 5.0
_SUBMIT_TIMEOUT_S = 30.0
# Ray's own figures are some seconds old, and every submission asks for them.
_RESOURCES_HOLD_S = 0.5


class RayUnavailableError(Exception):
    """Ray does not answer, or not like Ray; asking again later may help."""


class RayRefusedError(Exception):
    """Ray answered no; asking again would not help."""


class RayStatus(StrEnum):
    """The states of a Ray job, in Ray's words."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class RayJob(BaseModel):
    """What Ray says about a job."""

    model_config = ConfigDict(frozen=True)

    status: RayStatus
    message: str | None = None

    @property
    def end_unseen(self) -> bool:
        """Whether Ray says FAILED only since the job's supervisor had ended, as it does at the end of any job, before
        Ray saw how the job ended. It happens on a machine that is busy.
        """
        message = self.message or ""
        return (
            self.status is RayStatus.FAILED
            and message.startswith("Job supervisor actor died")
            and "INTENDED_USER_EXIT" in message
        )


class RayRun(RayJob):
    """A job in Ray's list. Times are in milliseconds since the epoch; `submission_id` is None for a bare driver."""

    submission_id: str | None = None
    entrypoint: str
    start_time: int | None = None
    end_time: int | None = None


@dataclass(frozen=True)
class RayNode:
    """A living node; `resources` counts CPUs and GPUs."""

    id: str
    address: str
    head: bool
    resources: dict[str, float]


@dataclass(frozen=True)
class RayResources:
    """The nodes of the cluster, and what Ray says is in use of their CPUs and GPUs (a few seconds old).

    `used_at` says it by the id of the node; it is empty where Ray does not tell.
    """

    nodes: tuple[RayNode, ...]
    used: dict[str, float]
    used_at: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def total(self) -> dict[str, float]:
        return {kind: sum(node.resources.get(kind, 0.0) for node in self.nodes) for kind in COUNTED_RESOURCES}


@dataclass(frozen=True)
class RaySubmission:
    """A job for Ray: its id, the shell command, and the environment it runs in.

    `metadata` is for secrets. Ray shows the environment in the arguments of the processes that it starts, where every
    user of a node can read it; metadata reach the job's process without.
    """

    id: str
    entrypoint: str
    env: dict[str, str]
    metadata: dict[str, str] = field(default_factory=dict)


class RayGateway(Protocol):
    """What the service asks of Ray. Every method raises `RayUnavailableError`."""

    @property
    def address(self) -> str:
        """Where the cluster is reached."""

    async def submit(self, submission: RaySubmission) -> None:
        """Start a job. Raises `RayRefusedError`, also for an id that Ray knows already."""

    async def job(self, job_id: str) -> RayJob | None:
        """The job, or None if Ray does not know it."""

    async def runs(self) -> list[RayRun]:
        """Everything that was submitted to the cluster, by anybody, and that Ray still knows."""

    async def stop(self, job_id: str) -> None:
        """Ask a job to end. Ray ignores this while the job is still pending, so it has to be asked again."""

    async def forget(self, job_id: str) -> None:
        """Let Ray forget a job that has ended, so that its id can be submitted again."""

    async def logs(self, job_id: str) -> str | None:
        """Everything that the job's driver wrote so far, or None if Ray does not know the job."""

    async def resources(self) -> RayResources:
        """The cluster's nodes and what is in use."""

    async def close(self) -> None:
        """Let go of connections."""


class HttpRayGateway:
    """`RayGateway` over the HTTP API of Ray's dashboard at `address`, with the cluster's token if it has one."""

    def __init__(
        self, address: str, token: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.address = address.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(
            base_url=self.address, headers=headers, timeout=_TIMEOUT_S, transport=transport, trust_env=False
        )
        self._seen: RayResources | None = None
        self._seen_at = 0.0

    async def submit(self, submission: RaySubmission) -> None:
        body = {
            "submission_id": submission.id,
            "entrypoint": submission.entrypoint,
            "runtime_env": {"env_vars": submission.env},
            "metadata": submission.metadata,
        }
        response = await self._send("POST", "/api/jobs/", json=body, timeout=_SUBMIT_TIMEOUT_S)
        if response.is_error:
            raise RayRefusedError(_last_line(response.text) or f"HTTP {response.status_code}")

    async def job(self, job_id: str) -> RayJob | None:
        response = await self._send("GET", f"/api/jobs/{job_id}")
        return None if response.status_code == httpx.codes.NOT_FOUND else _read(RayJob, response)

    async def runs(self) -> list[RayRun]:
        return [
            run for run in _read(_Runs, await self._send("GET", "/api/jobs/")).root if run.submission_id is not None
        ]

    async def stop(self, job_id: str) -> None:
        response = await self._send("POST", f"/api/jobs/{job_id}/stop")
        if response.status_code != httpx.codes.NOT_FOUND:
            _expect_success(response)

    async def forget(self, job_id: str) -> None:
        response = await self._send("DELETE", f"/api/jobs/{job_id}")
        if response.status_code != httpx.codes.NOT_FOUND:
            _expect_success(response)

    async def logs(self, job_id: str) -> str | None:
        response = await self._send("GET", f"/api/jobs/{job_id}/logs")
        return None if response.status_code == httpx.codes.NOT_FOUND else _read(_Logs, response).logs

    async def resources(self) -> RayResources:
        if self._seen is None or time.monotonic() - self._seen_at > _RESOURCES_HOLD_S:
            self._seen = await self._resources()
            self._seen_at = time.monotonic()
        return self._seen

    async def _resources(self) -> RayResources:
        listing = _read(_NodeListing, await self._send("GET", "/api/v0/nodes"))
        status = _read(_StatusAnswer, await self._send("GET", "/api/cluster_status"))
        nodes = tuple(
            RayNode(node.node_id, node.node_ip, node.is_head_node, _counted(node.resources_total))
            for node in listing.data.result.result
            if node.state == "ALIVE"
        )
        load = status.data.clusterStatus.loadMetricsReport if status.data.clusterStatus else _Load()
        used_at = {node_id: _used(usage) for node_id, usage in (load.usageByNode or {}).items()}
        return RayResources(nodes, _used(load.usage), used_at)

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise RayUnavailableError(
                f"{self.address} does not answer: {str(error) or type(error).__name__}"
            ) from error
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise RayUnavailableError(f"{self.address} wants another token (HTTP {response.status_code})")
        return response


class _Node(BaseModel):
    node_id: str
    node_ip: str
    is_head_node: bool = False
    state: str
    resources_total: dict[str, float] = {}


class _NodeList(BaseModel):
    result: list[_Node]


class _NodeData(BaseModel):
    result: _NodeList


class _NodeListing(BaseModel):
    data: _NodeData


class _Load(BaseModel):
    usage: dict[str, tuple[float, float]] = {}
    usageByNode: dict[str, dict[str, tuple[float, float]]] | None = None  # noqa: N815 - Ray's spelling


class _ClusterStatus(BaseModel):
    loadMetricsReport: _Load = _Load()  # noqa: N815 - Ray's spelling


class _StatusData(BaseModel):
    clusterStatus: _ClusterStatus | None = None  # noqa: N815 - Ray's spelling


class _StatusAnswer(BaseModel):
    data: _StatusData


class _Logs(BaseModel):
    logs: str


class _Runs(RootModel[list[RayRun]]):
    pass


_Shape = TypeVar("_Shape", bound=BaseModel)


def _read(shape: type[_Shape], response: httpx.Response) -> _Shape:
    _expect_success(response)
    try:
        return shape.model_validate_json(response.content)
    except ValidationError as error:
        raise RayUnavailableError(f"{response.request.url} did not answer as Ray does: {error}") from error


def _expect_success(response: httpx.Response) -> None:
    if not response.is_success:
        reason = _last_line(response.text)
        raise RayUnavailableError(f"{response.request.url} answered HTTP {response.status_code}: {reason}")


def _used(usage: dict[str, tuple[float, float]]) -> dict[str, float]:
    return _counted({kind: pair[0] for kind, pair in usage.items()})


def _counted(resources: dict[str, float]) -> dict[str, float]:
    return {kind: resources[kind] for kind in COUNTED_RESOURCES if kind in resources}


def _last_line(text: str) -> str:
    """Ray answers errors with a traceback, whose last line says what is wrong."""
    lines = text.strip().splitlines()
    return lines[-1][:500] if lines else ""
