"""The rank's side of telemetry: hands step samples on without ever making a step wait.

`Telemetry.record` appends to a bounded queue. A thread of its own empties the queue in batches, with few batches under
way at a time. What does not fit, and what is lost on the way, is counted and given up: training goes first. The thread
also measures the monitor's clock, tells the plan to every monitor that Ray starts, and asks whether the job is to stop.
"""

import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import structlog

from workers.reports import SAMPLES, JobPlan, StepSample
from workers.telemetry.beat import Beat
from workers.telemetry.clock import ClockOffset, MonitorClock

log = structlog.get_logger(__name__)

_ANSWER_WITHIN_S = 1.0


class Fate(Enum):
    """What became of a batch that was sent."""

    PENDING = auto()
    ARRIVED = auto()
    LOST = auto()


@dataclass(frozen=True)
class SampleBatch:
    """Samples of one rank in one attempt on their way to the monitor, encoded by `workers.reports.SAMPLES`.

    `recorded` counts the samples that the rank has recorded in this attempt up to and with these. Whoever has received
    fewer knows how many were given up or got lost. `clock` brings their times onto the monitor's clock.
    """

    rank: int
    attempt: int
    samples: bytes
    recorded: int
    clock: ClockOffset | None


class Link(Protocol):
    """The way to the job's monitor, for one thread. All but `fate` and `incarnation` raise if there is no monitor."""

    @property
    def incarnation(self) -> str | None:
        """Which start of the monitor has answered last; None before it has."""
        ...

    def send(self, batch: SampleBatch) -> Any:
        """Send a batch and return a ticket; does not block."""
        ...

    def announce(self, plan: JobPlan) -> Any:
        """Send the plan of the attempt and return a ticket; does not block."""
        ...

    def fate(self, ticket: Any) -> Fate:
        """What became of what was sent with this ticket; does not block."""
        ...

    def read_clock(self, timeout_s: float) -> float:
        """Ask for the monitor's time, in seconds since the epoch, and wait `timeout_s` for it at most."""
        ...

    def stops(self, timeout_s: float) -> bool:
        """Ask whether the ranks are to save and to end, and wait `timeout_s` for the answer at most."""
        ...


@dataclass(frozen=True)
class Limits:
    """How much telemetry may pile up: samples waiting, samples in a batch, batches under way; how often it is sent."""

    waiting: int = 4_096
    batch: int = 256
    under_way: int = 2
    interval_s: float = 2.0


class Telemetry:
    """One rank's samples on their way to the monitor."""

    def __init__(self, link: Link, rank: int, attempt: int, limits: Limits | None = None) -> None:
        self._link, self._rank, self._attempt = link, rank, attempt
        self._limits = limits or Limits()
        self._waiting: deque[StepSample] = deque()
        self._under_way: list[tuple[Any, int]] = []
        # One counter for each thread that writes, so that neither needs a lock.
        self._overflowed, self._taken, self._lost, self._told = 0, 0, 0, 0
        self._plan: JobPlan | None = None
        self._plan_ticket: tuple[Any] | None = None
        self._plan_arrived = False
        self._clock = MonitorClock(link.read_clock)
        self._incarnation: str | None = None
        self._told_to_stop = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    @property
    def dropped(self) -> int:
        """Samples given up so far, because the queue was full or a batch was lost."""
        return self._overflowed + self._lost

    @property
    def told_to_stop(self) -> bool:
        """Whether the job is to save and to end. Ranks may differ for a while."""
        return self._told_to_stop

    def start(self) -> None:
        """Start the thread that sends."""
        self._thread.start()

    def record(self, sample: StepSample) -> None:
        """Take a sample; returns at once, whatever the monitor does."""
        if len(self._waiting) >= self._limits.waiting:
            self._overflowed += 1
        else:
            self._waiting.append(sample)

    def announce(self, plan: JobPlan) -> None:
        """Take the plan of this attempt; returns at once. It is sent before any later sample, until it has arrived."""
        self._plan = plan.model_copy(update={"attempt": self._attempt})

    def close(self, timeout_s: float) -> None:
        """Send what is left and wait until it arrived, `timeout_s` at most."""
        self._closing.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("telemetry did not finish in time", timeout_s=timeout_s, waiting=len(self._waiting))

    def beat(self) -> None:
        """What the thread does every `interval_s` seconds; may block while it asks the monitor something."""
        if self._link.incarnation != self._incarnation:
            self._clock.expire()
        self._clock.refresh()
        self.tell_plan()
        self.pump()
        self._ask_whether_to_stop()

    def tell_plan(self) -> None:
        """Send the plan, unless the monitor that answered last has it."""
        self._collect()
        if self._link.incarnation != self._incarnation:
            self._incarnation, self._plan_arrived = self._link.incarnation, False
        if self._plan is None or self._plan_arrived or self._plan_ticket is not None:
            return
        try:
            self._plan_ticket = (self._link.announce(self._plan),)
        except Exception as error:
            log.warning("the plan did not reach the monitor; it is sent again", error=str(error))

    def pump(self) -> bool:
        """Send the samples that may be sent now. Says whether anything is left to do."""
        self._collect()
        while self._waiting and len(self._under_way) < self._limits.under_way:
            self._send([self._waiting.popleft() for _ in range(min(len(self._waiting), self._limits.batch))])
        return bool(self._waiting or self._under_way or self._plan_ticket is not None)

    def _run(self) -> None:
        self._clock.refresh()
        # A little after the beat on which the ranks work out their reports.
        beat = Beat(self._limits.interval_s, after_s=self._limits.interval_s / 4)
        while not self._closing.wait(beat.wait_s()):
            self.beat()
        self.tell_plan()
        rest = threading.Event()
        while self.pump():
            rest.wait(0.01)
        if self.dropped > self._told:
            self._send([])

    def _ask_whether_to_stop(self) -> None:
        try:
            self._told_to_stop = self._told_to_stop or self._link.stops(_ANSWER_WITHIN_S)
        except Exception as error:
            # Asked again on the next beat.
            log.debug("the monitor does not say whether to stop", error=str(error))

    def _collect(self) -> None:
        pending = []
        for ticket, count in self._under_way:
            fate = self._link.fate(ticket)
            if fate is Fate.PENDING:
                pending.append((ticket, count))
            elif fate is Fate.LOST:
                self._lost += count
        self._under_way = pending
        if self._plan_ticket is not None and (fate := self._link.fate(*self._plan_ticket)) is not Fate.PENDING:
            self._plan_ticket, self._plan_arrived = None, fate is Fate.ARRIVED

    def _send(self, samples: list[StepSample]) -> None:
        dropped = self.dropped
        self._taken += len(samples)
        recorded = self._overflowed + self._taken
        batch = SampleBatch(self._rank, self._attempt, SAMPLES.dump_json(samples), recorded, self._clock.offset)
        try:
            ticket = self._link.send(batch)
        except Exception as error:
            # Whatever is wrong with the monitor, training must not notice; the loss is counted and reported.
            if not self._lost:
                log.warning("step samples are being lost", error=str(error))
            self._lost += len(samples)
            return
        self._told = dropped
        self._under_way.append((ticket, len(samples)))
