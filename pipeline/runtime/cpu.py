"""CPU: one host thread does all stages in order, and a lane's transfers are gloo's asynchronous work.

The host thread is the compute lane, so every wait of the host is a wait of the compute lane.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from pipeline.runtime.base import Output, Pending, Runtime, Work
from pipeline.runtime.full_duplex import FullDuplex
from pipeline.schedule import Lane
from pipeline.timeline import Timeline


class CpuRuntime(Runtime):
    """Moments are host times in milliseconds."""

    timeline: Timeline[float]

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._full_duplex = FullDuplex()
        self.timeline = Timeline(rank, self.moment, resolve=lambda moment: moment, wait=lambda _: None)

    def moment(self) -> float:
        return time.perf_counter_ns() / 1e6

    @contextmanager
    def lane(self, lane: Lane) -> Iterator[None]:
        begin = self.moment()
        yield
        if lane is Lane.COMPUTE:
            self.timeline.computed(begin, self.moment())

    def fence(self, lane: Lane, output: Output) -> None:
        for pending in output.pending:
            if pending.flight.end is None:
                begin = self.moment()
                pending.work.wait()
                self.waited([pending.flight], begin, self.moment())
            else:
                pending.work.wait()

    def arrived(self, output: Output) -> bool:
        return all(pending.flight.end is not None for pending in output.pending)

    def reached(self, output: Output) -> bool:
        return self.arrived(output)

    def finish(self, lane: Lane, value: Any) -> Output:
        return Output(value, lane, self._take_started(), None)

    def start(self, pending: Pending) -> None:
        self.watch(pending)

    def join(self, pending: Pending) -> None:
        pass

    def _transfer(
        self,
        group: dist.ProcessGroup,
        received: Tensor,
        send: Tensor,
        receive_splits: list[int],
        send_splits: list[int],
    ) -> Work:
        return self._full_duplex.start(group, received, send, receive_splits, send_splits)
