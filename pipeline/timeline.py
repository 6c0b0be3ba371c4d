"""From moments to figures: what was in flight, what waited for it, and how much of it was hidden.

A moment is whatever the runtime hands out (a host time, a CUDA event); the runtime turns it into milliseconds once
it is known. A collective that spans two steps counts in each with the part that falls into that step.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pipeline.report import CollectiveName, CollectiveReport, Partition, StepReport

M = TypeVar("M")
Interval = tuple[float, float]


@dataclass(eq=False)
class Flight(Generic[M]):
    """One collective from its issue to its completion, and the moments in which the compute lane waited for it."""

    name: CollectiveName
    partition: Partition | None
    bytes_sent: int
    bytes_received: int
    begin: M
    end: M | None = None
    waits: list[tuple[M, M]] = field(default_factory=list)


@dataclass(frozen=True)
class StepFacts:
    """What a step knows about its batch. `overlapped_ids` is None where the schedule does not look for overlap."""

    step: int
    samples: int
    ids: int
    overlapped_ids: int | None


@dataclass
class _Window(Generic[M]):
    facts: StepFacts
    begin: M
    end: M
    compute: list[tuple[M, M]]
    flights: list[Flight[M]]
    issued: list[Flight[M]]


# Reports that nobody asks for are given up beyond this many.
KEPT = 1024

Kind = tuple[CollectiveName, Partition | None]
KINDS: list[Kind] = [(name, partition) for name in CollectiveName for partition in (None, *Partition)]


@dataclass
class _Tally:
    """What one kind of collective did in a step."""

    spans: list[Interval] = field(default_factory=list)
    waits: list[Interval] = field(default_factory=list)
    bytes_sent: int = 0
    bytes_received: int = 0

    def report(self, kind: Kind) -> CollectiveReport:
        comm = union(self.spans)
        return CollectiveReport(
            name=kind[0],
            partition=kind[1],
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
            ms=length(comm),
            exposed_ms=length(intersect(union(self.waits), comm)),
        )


class Timeline(Generic[M]):
    """Collects the moments of one rank and reports the steps whose moments are all known, each once and in order.

    `resolve` turns a moment into milliseconds, or None while it still lies ahead (a CUDA event not yet reached);
    `wait` holds the host until it does not.
    """

    def __init__(
        self, rank: int, now: Callable[[], M], resolve: Callable[[M], float | None], wait: Callable[[M], None]
    ) -> None:
        self._rank = rank
        self._now = now
        self._resolve = resolve
        self._wait = wait
        self._open: list[Flight[M]] = []
        self._issued: list[Flight[M]] = []
        self._compute: list[tuple[M, M]] = []
        self._begin: M | None = None
        self._windows: deque[_Window[M]] = deque()
        self._last: StepReport | None = None
        self._unread: deque[StepReport] = deque(maxlen=KEPT)

    def begin_step(self) -> None:
        """Open the window of a step; time between two steps belongs to neither."""
        self._begin = self._now()
        self._compute, self._issued = [], []

    def end_step(self, facts: StepFacts) -> None:
        """Close the window. The step is reported as soon as all its moments are known."""
        assert self._begin is not None, "end_step without begin_step"
        window = _Window(facts, self._begin, self._now(), self._compute, list(self._open), self._issued)
        self._windows.append(window)
        self._begin = None
        if len(self._windows) > KEPT:
            self._collect()
        # A flight that ends just now may be carried into the next window once more; it adds nothing there.
        self._open = [flight for flight in self._open if flight.end is None or self._resolve(flight.end) is None]

    def fly(self, name: CollectiveName, partition: Partition | None, bytes_sent: int, bytes_received: int) -> Flight[M]:
        """A collective is issued now."""
        flight = Flight(name, partition, bytes_sent, bytes_received, self._now())
        self._open.append(flight)
        self._issued.append(flight)
        return flight

    def computed(self, begin: M, end: M) -> None:
        """The compute lane worked in this interval (waits inside it are taken off)."""
        self._compute.append((begin, end))

    def last(self) -> StepReport | None:
        """The newest finished step; None before the first."""
        self._collect()
        return self._last

    def unread(self) -> list[StepReport]:
        """The finished steps that were not asked for yet, oldest first; of more than `KEPT` the newest."""
        self._collect()
        unread = list(self._unread)
        self._unread.clear()
        return unread

    def finish(self) -> None:
        """Wait until every step that has ended on the host has been reached by the device."""
        if self._windows:
            self._wait(self._windows[-1].end)

    def _collect(self) -> None:
        while self._windows and (report := self._reported(self._windows[0])) is not None:
            self._last = report
            self._unread.append(report)
            self._windows.popleft()

    def _reported(self, window: _Window[M]) -> StepReport | None:
        begin, end = self._resolve(window.begin), self._resolve(window.end)
        if begin is None or end is None:
            return None
        kinds: dict[Kind, _Tally] = {}
        for flight in window.flights:
            tally = kinds.setdefault((flight.name, flight.partition), _Tally())
            tally.spans.append(self._span(flight, begin, end))
            # Not clipped to the step: only what they have in common with spans and compute counts, and these are.
            tally.waits += self._known(flight.waits)
        for flight in window.issued:
            tally = kinds.setdefault((flight.name, flight.partition), _Tally())
            tally.bytes_sent += flight.bytes_sent
            tally.bytes_received += flight.bytes_received
        comm = union([span for tally in kinds.values() for span in tally.spans])
        waits = union([wait for tally in kinds.values() for wait in tally.waits])
        compute = union(self._known(window.compute))
        comm_ms, exposed_ms = length(comm), length(intersect(waits, comm))
        hidden_ms = max(0.0, comm_ms - exposed_ms)
        facts = window.facts
        return StepReport(
            step=facts.step,
            rank=self._rank,
            samples=facts.samples,
            step_ms=end - begin,
            compute_ms=max(0.0, length(compute) - length(intersect(compute, waits))),
            comm_ms=comm_ms,
            exposed_ms=exposed_ms,
            hidden_ms=hidden_ms,
            comm_overlap=hidden_ms / comm_ms if comm_ms > 0 else None,
            ids=facts.ids,
            overlapped_ids=facts.overlapped_ids,
            id_overlap=facts.overlapped_ids / facts.ids if facts.overlapped_ids is not None and facts.ids else None,
            collectives=tuple(kinds[kind].report(kind) for kind in KINDS if kind in kinds),
        )

    def _span(self, flight: Flight[M], step_begin: float, step_end: float) -> Interval:
        begin = self._resolve(flight.begin)
        end = None if flight.end is None else self._resolve(flight.end)
        return (
            step_begin if begin is None or begin < step_begin else begin,
            step_end if end is None or end > step_end else end,
        )

    def _known(self, intervals: list[tuple[M, M]]) -> list[Interval]:
        known = []
        for one, other in intervals:
            begin, end = self._resolve(one), self._resolve(other)
            if begin is not None and end is not None:
                known.append((begin, end))
        return known


def union(intervals: list[Interval]) -> list[Interval]:
    """Disjoint intervals in order that cover the same time."""
    if len(intervals) == 1:
        return intervals if intervals[0][1] > intervals[0][0] else []
    merged: list[Interval] = []
    last = -math.inf
    for interval in sorted(intervals):
        begin, end = interval
        if end <= begin or end <= last:
            continue
        if begin <= last:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append(interval)
        last = end
    return merged


def intersect(one: list[Interval], other: list[Interval]) -> list[Interval]:
    """The time that two lists of disjoint, ordered intervals have in common."""
    common: list[Interval] = []
    left = right = 0
    while left < len(one) and right < len(other):
        one_begin, one_end = one[left]
        other_begin, other_end = other[right]
        # Compared by hand: this is the innermost loop of every report, and calls of min and max would double it.
        begin = one_begin if one_begin > other_begin else other_begin
        end = one_end if one_end < other_end else other_end
        if end > begin:
            common.append((begin, end))
        if one_end < other_end:
            left += 1
        else:
            right += 1
    return common


def length(intervals: Iterable[Interval]) -> float:
    """The summed length, in the unit of the intervals."""
    return sum([end - begin for begin, end in intervals])
