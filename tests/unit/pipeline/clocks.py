"""Streams with clocks: what a device would be certain to have done, worked out without a device.

Every stream counts its operations and knows up to which operation of every other stream it is ordered. Waiting for an
event or a collective takes over what that knew.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch


@dataclass(frozen=True)
class Moment:
    """The n-th operation of a stream."""

    stream: "ClockedStream"
    tick: int


@dataclass(eq=False)
class ClockedStream:
    """`clock[s]` is the last operation of stream s that this stream is ordered after."""

    name: str
    clock: dict["ClockedStream", int] = field(default_factory=dict)
    waits: int = 0

    def work(self) -> Moment:
        """Do one operation."""
        self.clock[self] = self.clock.get(self, 0) + 1
        return Moment(self, self.clock[self])

    def wait_event(self, event: "ClockedEvent") -> None:
        self.waits += 1
        self.join(event.clock)

    def join(self, clock: dict["ClockedStream", int]) -> None:
        for stream, tick in clock.items():
            self.clock[stream] = max(tick, self.clock.get(stream, 0))

    def is_after(self, moment: Moment) -> bool:
        return self.clock.get(moment.stream, 0) >= moment.tick


@dataclass(eq=False)
class ClockedEvent:
    """What its stream was ordered after when it was recorded."""

    clock: dict[ClockedStream, int] = field(default_factory=dict)

    def record(self, stream: ClockedStream) -> None:
        self.clock = dict(stream.clock)

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "ClockedEvent") -> float:
        return 0.0


class ClockedCuda:
    """The part of `torch.cuda` that the CUDA runtime uses."""

    def __init__(self) -> None:
        self.compute = ClockedStream("compute")
        self.network = ClockedStream("network")
        self._current = [self.compute]

    def Stream(self, device: torch.device, priority: int = 0) -> ClockedStream:  # noqa: N802 - torch.cuda's name
        return ClockedStream("lane")

    def Event(self, enable_timing: bool = False) -> ClockedEvent:  # noqa: N802 - torch.cuda's name
        return ClockedEvent()

    def current_stream(self, device: torch.device | None = None) -> ClockedStream:
        return self._current[-1]

    @contextmanager
    def stream(self, stream: ClockedStream) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()


@dataclass(eq=False)
class ClockedTensor:
    """Memory that belongs to the stream which allocated it, with the moment in which its content is there."""

    allocated_on: ClockedStream
    ready: Moment
    work: "ClockedWork | HostWork | None" = None
    recorded: list[ClockedStream] = field(default_factory=list)

    def record_stream(self, stream: ClockedStream) -> None:
        self.recorded.append(stream)


class ClockedWork:
    """A collective as NCCL runs it: on a stream of its own, after what the issuing stream had done."""

    def __init__(self, cuda: ClockedCuda) -> None:
        self._cuda = cuda
        cuda.network.join(cuda.current_stream().clock)
        self.done = cuda.network.work()
        self._clock = dict(cuda.network.clock)

    def wait(self) -> None:
        self._cuda.current_stream().join(self._clock)


class HostWork:
    """A collective as gloo runs it: the host has its data once it has waited. `failing` makes the wait raise."""

    def __init__(self, *, failing: bool = False) -> None:
        self.waited = False
        self._failing = failing
        self._then: list[Callable[[object], object]] = []

    def wait(self) -> None:
        if self._failing:
            raise ConnectionError("the peer is gone")
        self.waited = True
        self.end()

    def end(self) -> None:
        """The transfer ends, whether or not anybody waits for it."""
        for callback in self._then:
            callback(self)
        self._then = []

    def get_future(self) -> Self:
        return self

    def then(self, callback: Callable[[object], Any]) -> None:
        self._then.append(callback)
