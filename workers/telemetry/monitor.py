"""The telemetry actor of a job: collects the samples of all ranks, and sees to it that they are kept.

It runs beside the driver and ends with it. Its name, `monitor:<job id>` in the namespace `overlane`, lets the ranks
find it, also after Ray has restarted it. What it knew then comes back from the driver, and the plan from rank 0.
"""

import os
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workers.reports import SAMPLES, JobEnd, JobPlan, StepSample
from workers.telemetry.archive import Archive, ReportFolder
from workers.telemetry.courier import Courier, Target
from workers.telemetry.delivery import Delivery
from workers.telemetry.outbox import Outbox
from workers.telemetry.sender import Fate, SampleBatch
from workers.telemetry.status import Memory, Settled, Status, Trouble
from workers.telemetry.tally import Summary, Tally

NAMESPACE = "overlane"
_NICENESS = 19


@dataclass(frozen=True)
class Destination:
    """Where the reports of a job go: the control plane's base URL, and the secret of this job."""

    url: str
    token: str


@dataclass(frozen=True)
class Reading:
    """The monitor's time, in seconds since the epoch, and which start of the monitor it comes from."""

    time_s: float
    incarnation: str


class Monitor:
    """What the actor does. Reports go to a control plane, or into a folder, or nowhere but into the running totals.

    `world_size` is for attempts whose plan is not known: None if only their plans can tell. `follows` says that another
    monitor of this job was there before, and is lost.
    """

    def __init__(
        self, job_id: str, world_size: int | None, target: Destination | ReportFolder | None, *, follows: bool = False
    ) -> None:
        self._incarnation = uuid4().hex
        self._remembered = {self._incarnation}
        self._world_size, self._world_sizes = world_size, dict[int, int]()
        self._tally, self._outbox = Tally(), Outbox(follows=follows)
        self._plan: JobPlan | None = None
        self._trouble: Trouble | None = None
        self._last_attempt = -1
        self._stops = False
        self._courier = _courier(self._outbox, job_id, target)

    async def next_attempt(self) -> int:
        """Number of the worker group that starts now, from 0. Rank 0 asks, once for each start."""
        self._last_attempt += 1
        return self._last_attempt

    async def clock(self) -> Reading:
        """For the ranks, which put their samples on this clock."""
        return Reading(time.time(), self._incarnation)

    async def ingest(self, batch: SampleBatch) -> str:
        """Take samples of one rank. Returns the incarnation of the monitor that has them."""
        samples = [_on_my_clock(sample, batch) for sample in SAMPLES.validate_json(batch.samples)]
        self._last_attempt = max(self._last_attempt, batch.attempt)
        self._tally.add(samples, self._world_sizes.get(batch.attempt, self._world_size))
        self._outbox.add_samples(batch.rank, batch.attempt, samples, batch.recorded)
        self._wake()
        return self._incarnation

    async def announce(self, report: JobPlan | JobEnd) -> str:
        """Take the plan of an attempt, or what the run tells last. Returns the incarnation that has it.

        The same plan again, or one of an earlier attempt, changes nothing.
        """
        if isinstance(report, JobPlan):
            self._take_plan(report)
        else:
            self._outbox.add(report)
        self._wake()
        return self._incarnation

    async def tell_trouble(self, message: str) -> None:
        """Take note of what has just ended an attempt."""
        number = 1 if self._trouble is None else self._trouble.number + 1
        self._trouble = Trouble(number, max(0, self._last_attempt), message)

    async def stop(self) -> bool:
        """Tell the ranks, when they ask, to save and to end. Says whether any attempt has come to its first step."""
        self._stops = True
        return self._plan is not None

    async def stops(self) -> bool:
        """Whether the ranks are to save and to end."""
        return self._stops

    async def status(self, memory: Memory | None) -> Status:
        """For the driver's progress. `memory` is what it was told last: that of another incarnation is taken over."""
        self._recall(memory)
        return Status(
            attempt=self._last_attempt,
            first_step=self._tally.first_step(self._last_attempt),
            plan=self._plan,
            progress=self._tally.progress,
            dropped=self._outbox.dropped,
            trouble=self._trouble,
            memory=self._memory(),
        )

    async def summary(self, memory: Memory | None) -> Summary:
        """For the driver's table. `memory` as in `status`."""
        self._recall(memory)
        return self._tally.summary()

    async def conclude(self, memory: Memory | None, report: JobEnd | None, timeout_s: float) -> Settled:
        """Take the last report and wait until everything is delivered, `timeout_s` at most. `memory` as in `status`."""
        self._recall(memory)
        if report is not None:
            await self.announce(report)
        return Settled(await self.finish(timeout_s), self._outbox.dropped)

    async def finish(self, timeout_s: float) -> bool:
        """Wait until everything is delivered, `timeout_s` at most. Says whether it was."""
        return self._courier is None or await self._courier.finish(timeout_s)

    def _take_plan(self, plan: JobPlan) -> None:
        self._world_sizes[plan.attempt] = plan.world_size
        self._last_attempt = max(self._last_attempt, plan.attempt)
        if self._plan is None or (plan != self._plan and plan.attempt >= self._plan.attempt):
            self._plan = plan
            self._outbox.add(plan)

    def _memory(self) -> Memory:
        return Memory(
            incarnation=self._incarnation,
            last_attempt=self._last_attempt,
            plan=self._plan,
            tally=self._tally.snapshot(),
            accounts=self._outbox.accounts(),
            given_up=self._outbox.given_up,
            trouble=self._trouble,
        )

    def _recall(self, memory: Memory | None) -> None:
        if memory is None or memory.incarnation in self._remembered:
            # Whatever another monitor knew is here, or was never told to the driver.
            self._outbox.recall({}, 0)
            return
        self._remembered.add(memory.incarnation)
        self._last_attempt = max(self._last_attempt, memory.last_attempt)
        self._trouble = _later(memory.trouble, self._trouble)
        self._tally.recall(memory.tally)
        self._outbox.recall(memory.accounts, memory.given_up)
        if memory.plan is not None:
            self._take_plan(memory.plan)
        self._wake()

    def _wake(self) -> None:
        if self._courier is not None:
            self._courier.wake(self._outbox.waiting)


def _courier(outbox: Outbox, job_id: str, target: Destination | ReportFolder | None) -> Courier | None:
    if target is None:
        outbox.close()
        return None
    way: Target
    if isinstance(target, ReportFolder):
        way = Archive(outbox, target)
    else:
        client = httpx.AsyncClient(
            base_url=target.url,
            headers={"Authorization": f"Bearer {target.token}"},
            timeout=10.0,
            # Jobs reach the control plane directly: a proxy of the environment leads out of the cluster.
            trust_env=False,
        )
        way = Delivery(outbox, client, job_id)
    return Courier(way)


def _later(earlier: Trouble | None, own: Trouble | None) -> Trouble | None:
    if earlier is None or own is None:
        return own or earlier
    return Trouble(earlier.number + own.number, own.attempt, own.message)


def _on_my_clock(sample: StepSample, batch: SampleBatch) -> StepSample:
    if batch.clock is None:
        return sample
    clock = batch.clock
    return sample.model_copy(
        update={
            "time": sample.time + timedelta(milliseconds=clock.offset_ms),
            "clock_offset_ms": clock.offset_ms,
            "clock_uncertainty_ms": clock.uncertainty_ms,
        }
    )


class MonitorActor(Monitor):
    """The monitor in a process of its own, which gives way to training wherever cores are scarce."""

    def __init__(self, job_id: str, world_size: int | None, target: Destination | ReportFolder | None) -> None:
        os.nice(_NICENESS)
        with warnings.catch_warnings():
            # Ray asks itself in a way that it calls deprecated, and would tell the user.
            warnings.simplefilter("ignore", DeprecationWarning)
            restarted = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        super().__init__(job_id, world_size, target, follows=restarted)


def start_monitor(job_id: str, world_size: int | None, target: Destination | ReportFolder | None) -> Any:
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
        .remote(job_id, world_size, target)
    )


def actor_name(job_id: str) -> str:
    """The name under which the ranks find the job's monitor."""
    return f"monitor:{job_id}"


class MonitorLink:
    """A rank's link to the monitor of its job. See `workers.telemetry.sender.Link`."""

    def __init__(self, job_id: str) -> None:
        self._name = actor_name(job_id)
        self._handle: Any = None
        self._incarnation: str | None = None

    @property
    def incarnation(self) -> str | None:
        return self._incarnation

    def next_attempt(self, timeout_s: float) -> int:
        """Ask for the number of this start of the worker group. Raises if the monitor does not answer in time."""
        attempt: int = ray.get(self._monitor().next_attempt.remote(), timeout=timeout_s)
        return attempt

    def send(self, batch: SampleBatch) -> Any:
        return self._monitor().ingest.remote(batch)

    def announce(self, plan: JobPlan) -> Any:
        return self._monitor().announce.remote(plan)

    def fate(self, ticket: Any) -> Fate:
        ready, _ = ray.wait([ticket], timeout=0)
        if not ready:
            return Fate.PENDING
        try:
            self._incarnation = ray.get(ticket)
        except ray.exceptions.RayError:
            return Fate.LOST
        return Fate.ARRIVED

    def read_clock(self, timeout_s: float) -> float:
        reading: Reading = ray.get(self._monitor().clock.remote(), timeout=timeout_s)
        self._incarnation = reading.incarnation
        return reading.time_s

    def stops(self, timeout_s: float) -> bool:
        stops: bool = ray.get(self._monitor().stops.remote(), timeout=timeout_s)
        return stops

    def tell_trouble(self, message: str) -> None:
        """Tell what has ended the running attempt; does not wait. Raises if there is no monitor to be found."""
        self._monitor().tell_trouble.remote(message)

    def _monitor(self) -> Any:
        if self._handle is None:
            self._handle = ray.get_actor(self._name, namespace=NAMESPACE)
        return self._handle
