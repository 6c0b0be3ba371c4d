"""CUDA: a lane is a stream, a fence an event plus `record_stream`, a moment a timed event.

The device module is handed in (`torch.cuda`), so that a recording stand-in can prove the fences without a GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pipeline.runtime.base import Output, Pending, Runtime, tensors_in
from pipeline.schedule import Lane
from pipeline.timeline import Timeline


class CudaRuntime(Runtime):
    """Moments are events; they become milliseconds since the runtime's creation once the device has reached them."""

    timeline: Timeline[Any]

    def __init__(self, rank: int, device_module: Any, device: torch.device) -> None:
        super().__init__()
        self._cuda = device_module
        self._device = device
        self._streams = {
            Lane.COPY: device_module.Stream(device=device),
            Lane.DIST: device_module.Stream(device=device, priority=-1),
            Lane.PRIORITY: device_module.Stream(device=device, priority=-1),
            Lane.BACKGROUND: device_module.Stream(device=device),
            Lane.DENSE: device_module.Stream(device=device, priority=-1),
        }
        self._origin = self.moment()
        self.timeline = Timeline(rank, self.moment, self._milliseconds, lambda event: event.synchronize())

    def moment(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record(self._current_stream())
        return event

    @contextmanager
    def lane(self, lane: Lane) -> Iterator[None]:
        if lane is Lane.COMPUTE:
            begin = self.moment()
            yield
            self.timeline.computed(begin, self.moment())
        else:
            with self._cuda.stream(self._streams[lane]):
                yield

    def fence(self, lane: Lane, output: Output) -> None:
        if lane is output.lane:
            return
        stream = self._current_stream() if lane is Lane.COMPUTE else self._streams[lane]
        if lane is Lane.COMPUTE and output.pending:
            begin = self.moment()
            stream.wait_event(output.done)
            self.waited([pending.flight for pending in output.pending], begin, self.moment())
        else:
            stream.wait_event(output.done)
        for tensor in tensors_in(output.value):
            tensor.record_stream(stream)

    def arrived(self, output: Output) -> bool:
        # The streams wait for each other; the host never does.
        return True

    def reached(self, output: Output) -> bool:
        return bool(output.done.query())

    def finish(self, lane: Lane, value: Any) -> Output:
        return Output(value, lane, self._take_started(), self.moment())

    def start(self, pending: Pending) -> None:
        # NCCL runs on a stream of its own; this makes the lane's stream wait for it and leaves the host free.
        pending.work.wait()
        pending.flight.end = self.moment()

    def join(self, pending: Pending) -> None:
        pending.work.wait()

    def _current_stream(self) -> Any:
        return self._cuda.current_stream(self._device)

    def _milliseconds(self, event: Any) -> float | None:
        return float(self._origin.elapsed_time(event)) if event.query() else None
