"""The rank's side of telemetry: hands step samples on without ever making a step wait.

`Telemetry.record` appends to a bounded queue. A thread of its own empties the queue in batches, with few batches under
way at a time. What does not fit, and what is lost on the way, is counted and given up: training goes first.
"""

import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import structlog

from workers.reports import SAMPLES, JobPlan, StepSample
from workers.telemetry.beat import Beat

log = structlog.get_logger(__name__)


class Fate(Enum):
    """What became of a batch that was sent."""

    PENDING = auto()
    ARRIVED = auto()
    LOST = auto()


class Link(Protocol):
    """The way to the job's monitor. No call blocks; `send` and `announce` raise if there is no monitor to be found."""

    def send(self, rank: int, attempt: int, samples: bytes, dropped: int) -> Any:
        """Send a batch (see `workers.reports.SAMPLES`) and return a ticket. `dropped` counts the samples that this rank
        has given up so far.
        """
        ...

    def fate(self, ticket: Any) -> Fate:
        """What became of the batch with this ticket."""
        ...

    def announce(self, plan: JobPlan) -> None:
        """Send the plan of the run."""
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
        self._overflowed, self._lost, self._told = 0, 0, 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    @property
    def dropped(self) -> int:
        """Samples given up so far, because the queue was full or a batch was lost."""
        return self._overflowed + self._lost

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
        """Send the plan of the run; a lost plan is logged, and training goes on."""
        try:
            self._link.announce(plan)
        except Exception as error:
            log.warning("the plan did not reach the monitor", error=str(error))

    def close(self, timeout_s: float) -> None:
        """Send what is left and wait until it arrived, `timeout_s` at most."""
        self._closing.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("telemetry did not finish in time", timeout_s=timeout_s, waiting=len(self._waiting))

    def pump(self) -> bool:
        """Send what may be sent now. Says whether anything is left to do."""
        self._collect()
        while self._waiting and len(self._under_way) < self._limits.under_way:
            self._send([self._waiting.popleft() for _ in range(min(len(self._waiting), self._limits.batch))])
        return bool(self._waiting or self._under_way)

    def _run(self) -> None:
        # A little after the beat on which the ranks work out their reports.
        beat = Beat(self._limits.interval_s, after_s=self._limits.interval_s / 4)
        while not self._closing.wait(beat.wait_s()):
            self.pump()
        rest = threading.Event()
        while self.pump():
            rest.wait(0.01)
        if self.dropped > self._told:
            self._send([])

    def _collect(self) -> None:
        pending = []
        for ticket, count in self._under_way:
            fate = self._link.fate(ticket)
            if fate is Fate.PENDING:
                pending.append((ticket, count))
            elif fate is Fate.LOST:
                self._lost += count
        self._under_way = pending

    def _send(self, samples: list[StepSample]) -> None:
        dropped = self.dropped
        try:
            ticket = self._link.send(self._rank, self._attempt, SAMPLES.dump_json(samples), dropped)
        except Exception as error:
            # Whatever is wrong with the monitor, training must not notice; the loss is counted and reported.
            if not self._lost:
                log.warning("step samples are being lost", error=str(error))
            self._lost += len(samples)
            return
        self._told = dropped
        self._under_way.append((ticket, len(samples)))
