"""The telemetry actor of a job: collects the samples of all ranks and delivers them to the control plane.

It runs beside the driver and ends with it. Its name, `monitor:<job id>` in the namespace `overlane`, lets the ranks
find it, also after Ray has restarted it.
"""

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import httpx
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workers.reports import SAMPLES, JobFailure, JobPlan, JobResult
from workers.telemetry.delivery import Delivery, Outbox
from workers.telemetry.sender import Fate
from workers.telemetry.tally import Status, Summary, Tally

NAMESPACE = "overlane"
_GATHER_S = 0.25
_PACE_S = 1.0
_NICENESS = 19


@dataclass(frozen=True)
class Destination:
    """Where the reports of a job go: the control plane's base URL, and the secret of this job."""

    url: str
    token: str


class Monitor:
    """What the actor does. Without a destination it only keeps the running totals."""

    def __init__(self, job_id: str, world_size: int, destination: Destination | None) -> None:
        self._world_size = world_size
        self._tally, self._outbox = Tally(), Outbox()
        self._plan: JobPlan | None = None
        self._last_attempt = -1
        self._news, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._delivery: Delivery | None = None
        self._task: asyncio.Task[None] | None = None
        if destination is None:
            self._outbox.close()
        else:
            client = httpx.AsyncClient(
                base_url=destination.url,
                headers={"Authorization": f"Bearer {destination.token}"},
                timeout=10.0,
                # Jobs reach the control plane directly: a proxy of the environment leads out of the cluster.
                trust_env=False,
            )
            self._delivery = Delivery(self._outbox, client, job_id)

    async def next_attempt(self) -> int:
        """Number of the worker group that starts now, from 0. Rank 0 asks, once for each start."""
        self._last_attempt += 1
        return self._last_attempt

    async def ingest(self, rank: int, attempt: int, encoded: bytes, dropped: int) -> None:
        """Take samples of one rank; `dropped` counts those it has given up so far in this attempt."""
        samples = SAMPLES.validate_json(encoded)
        self._last_attempt = max(self._last_attempt, attempt)
        self._tally.add(samples, self._world_size)
        self._outbox.add_samples(rank, attempt, samples, dropped)
        self._wake()

    async def announce(self, report: JobPlan | JobResult | JobFailure) -> None:
        """Take the plan, the result or the failure of the run."""
        if isinstance(report, JobPlan):
            self._plan = report
        self._outbox.add(report)
        self._wake()

    async def status(self) -> Status:
        """For the driver's progress lines."""
        return Status(self._plan, self._tally.progress, self._outbox.dropped)

    async def summary(self) -> Summary:
        """For the driver's table."""
        return self._tally.summary()

    async def finish(self, timeout_s: float) -> bool:
        """Wait until everything is delivered, `timeout_s` at most. Says whether it was."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        if self._task is not None:
            # The actor ends soon, and asyncio would complain about a task that still waits then.
            self._task.cancel()
            self._task = None
        return True

    def _wake(self) -> None:
        if self._delivery is None:
            return
        if self._task is None:
            # Not earlier: only with its first call does the actor's event loop run.
            self._task = asyncio.create_task(self._keep_delivering(self._delivery))
        self._idle.clear()
        self._news.set()

    async def _keep_delivering(self, delivery: Delivery) -> None:
        # Ranks send on the same beat: what comes within a moment goes out together.
        await asyncio.sleep(_GATHER_S)
        while await delivery.drain():
            self._idle.set()
            await asyncio.sleep(_PACE_S)
            await self._news.wait()
            self._news.clear()
            await asyncio.sleep(_GATHER_S)
        self._delivery = None
        self._idle.set()


class MonitorActor(Monitor):
    """The monitor in a process of its own, which gives way to training wherever cores are scarce."""

    def __init__(self, job_id: str, world_size: int, destination: Destination | None) -> None:
        os.nice(_NICENESS)
        super().__init__(job_id, world_size, destination)


def start_monitor(job_id: str, world_size: int, destination: Destination | None) -> Any:
    """Start the job's monitor on the driver's node; the handle keeps it alive."""
    beside_the_driver = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return (
        ray.remote(MonitorActor)
        .options(
            name=actor_name(job_id),
            namespace=NAMESPACE,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=64,
            scheduling_strategy=beside_the_driver,
        )
        .remote(job_id, world_size, destination)
    )


def actor_name(job_id: str) -> str:
    """The name under which the ranks find the job's monitor."""
    return f"monitor:{job_id}"


class MonitorLink:
    """A rank's link to the monitor of its job."""

    def __init__(self, job_id: str) -> None:
        self._name = actor_name(job_id)
        self._handle: Any = None

    def next_attempt(self, timeout_s: float) -> int:
        """Ask for the number of this start of the worker group. Raises if the monitor does not answer in time."""
        attempt: int = ray.get(self._monitor().next_attempt.remote(), timeout=timeout_s)
        return attempt

    def send(self, rank: int, attempt: int, samples: bytes, dropped: int) -> Any:
        """See `workers.telemetry.sender.Link`."""
        return self._monitor().ingest.remote(rank, attempt, samples, dropped)

    def fate(self, ticket: Any) -> Fate:
        """See `workers.telemetry.sender.Link`."""
        ready, _ = ray.wait([ticket], timeout=0)
        if not ready:
            return Fate.PENDING
        try:
            ray.get(ticket)
        except ray.exceptions.RayError:
            return Fate.LOST
        return Fate.ARRIVED

    def announce(self, plan: JobPlan) -> None:
        """See `workers.telemetry.sender.Link`."""
        self._monitor().announce.remote(plan)

    def _monitor(self) -> Any:
        if self._handle is None:
            self._handle = ray.get_actor(self._name, namespace=NAMESPACE)
        return self._handle
