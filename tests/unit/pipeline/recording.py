"""A stand-in for `torch.cuda` that records what streams and events were asked to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(eq=False)
class RecordingStream:
    """A stream: the stages it ran and the events it waited for, in order."""

    name: str
    waited: list["RecordingEvent"] = field(default_factory=list)

    def wait_event(self, event: "RecordingEvent") -> None:
        self.waited.append(event)


@dataclass(eq=False)
class RecordingEvent:
    """An event: where it was recorded."""

    stream: RecordingStream | None = None

    def record(self, stream: RecordingStream) -> None:
        self.stream = stream

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "RecordingEvent") -> float:
        return 0.0


class RecordingCuda:
    """The part of `torch.cuda` that the CUDA runtime uses."""

    def __init__(self) -> None:
        self.compute = RecordingStream("compute")
        self._current = [self.compute]
        self._created = 0

    def Stream(self, device: torch.device, priority: int = 0) -> RecordingStream:  # noqa: N802 - torch.cuda's name
        self._created += 1
        return RecordingStream(f"stream {self._created}")

    def Event(self, enable_timing: bool = False) -> RecordingEvent:  # noqa: N802 - torch.cuda's name
        return RecordingEvent()

    def current_stream(self, device: torch.device | None = None) -> RecordingStream:
        return self._current[-1]

    @contextmanager
    def stream(self, stream: RecordingStream) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()


@dataclass(eq=False)
class RecordingTensor:
    """A tensor: the streams it was recorded on."""

    born_on: RecordingStream
    recorded: list[RecordingStream] = field(default_factory=list)

    def record_stream(self, stream: Any) -> None:
        self.recorded.append(stream)
