"""Three limits: the same steps, in which rows, gradients and dense gradients stay where they are, or are not waited
for, or move while nothing is computed.

The first is what compute alone takes. The second adds what a transfer costs the cores that compute: no schedule could
do better with this transport. What comes back has the same shape, and the values of what would have been sent. Ids and
overlap masks still travel, since the steps' shapes follow from them; they are small and leave early. The third is what
transport and link need for the bytes of a step, where a link of a nominal rate is one that never stands idle.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.report import CollectiveName, Partition
from pipeline.runtime import Runtime
from pipeline.runtime.base import Pending, Work

STAYING = frozenset({CollectiveName.EMBEDDING, CollectiveName.GRADIENT})
# So many transfers may be under way; a step has about ten.
UNDER_WAY = 16
# The step that is repeated without its compute: by then it is like any other.
REPEATED = 4


@dataclass(frozen=True)
class Done:
    """A transfer that was over when it began."""

    tensor: Tensor

    def wait(self) -> None:
        """There is nothing to wait for."""

    def get_future(self) -> "torch.futures.Future[Any]":
        """Done, with the value that gloo's own futures have."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([self.tensor])
        return future


def keep_transfers_local(runtime: Runtime) -> None:
    """From now on, the large transfers of this runtime move nothing."""
    moving = runtime.all_to_all

    def all_to_all(
        name: CollectiveName,
        partition: Partition | None,
        group: dist.ProcessGroup,
        send: Tensor,
        *splits: list[int],
    ) -> Tensor:
        if name not in STAYING:
            return moving(name, partition, group, send, *splits)
        return same_shape(send, sum(splits[1]))

    def all_reduce_beside(name: CollectiveName, group: dist.ProcessGroup, tensor: Tensor) -> Pending:
        flight = runtime.timeline.fly(name, None, 0, 0)
        flight.end = runtime.moment()
        return Pending(flight, Done(tensor))

    local: Any = runtime
    local.all_to_all, local.all_reduce_beside = all_to_all, all_reduce_beside


def wait_for_nothing(runtime: Runtime) -> None:
    """From now on, the large transfers of this runtime move into memory that nobody reads, and nobody waits for them
    until many more have begun.
    """
    moving, reducing = runtime.all_to_all, runtime.all_reduce_beside
    under_way: deque[Pending] = deque()

    def let_go(pending: Pending) -> None:
        under_way.append(pending)
        if len(under_way) > UNDER_WAY:
            under_way.popleft().work.wait()

    def all_to_all(
        name: CollectiveName,
        partition: Partition | None,
        group: dist.ProcessGroup,
        send: Tensor,
        *splits: list[int],
    ) -> Tensor:
        received = moving(name, partition, group, send, *splits)
        if name not in STAYING:
            return received
        let_go(runtime._started.pop())
        return same_shape(send, sum(splits[1]))

    def all_reduce_beside(name: CollectiveName, group: dist.ProcessGroup, tensor: Tensor) -> Pending:
        pending = reducing(name, group, tensor.clone())
        let_go(pending)
        return Pending(pending.flight, Done(tensor))

    unawaited: Any = runtime
    unawaited.all_to_all, unawaited.all_reduce_beside = all_to_all, all_reduce_beside


class TransfersAlone:
    """A pipeline that trains its first steps, and from then on repeats the large transfers of the last of them."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline, self._runtime = pipeline, pipeline._runtime
        self._moves: list[Callable[[], Work]] = []
        self._under_way: deque[Work] = deque()
        self._trained = 0
        self._moving, self._reducing = self._runtime.all_to_all, self._runtime.all_reduce_beside
        self._runtime.all_to_all, self._runtime.all_reduce_beside = self._all_to_all, self._all_reduce_beside

    def progress(self, batches: Iterator[Any]) -> None:
        """Train one batch, or move as many bytes as one has moved."""
        if self._trained < REPEATED:
            self._moves.clear()
            self._trained += 1
            self._pipeline.progress(batches)
            return
        for move in self._moves:
            self._under_way.append(move())
            if len(self._under_way) > UNDER_WAY:
                self._under_way.popleft().wait()

    def _all_to_all(
        self, name: CollectiveName, partition: Partition | None, group: dist.ProcessGroup, send: Tensor, *splits: Any
    ) -> Any:
        sent, arriving = splits

        def move() -> Work:
            received = send.new_empty((sum(arriving), *send.shape[1:]))
            work: Work = self._runtime._transfer(group, received, send.contiguous(), arriving, sent)
            return work

        if name in STAYING:
            self._moves.append(move)
        return self._moving(name, partition, group, send, *splits)

    def _all_reduce_beside(self, name: CollectiveName, group: dist.ProcessGroup, tensor: Tensor) -> Pending:
        values = tensor.clone()

        def move() -> Work:
            work: Work | None = dist.all_reduce(values, group=group, async_op=True)
            assert work is not None
            return work

        self._moves.append(move)
        pending: Pending = self._reducing(name, group, tensor)
        return pending


def same_shape(send: Tensor, rows: int) -> Tensor:
    """`rows` rows like those of `send`, which come again if they do not suffice. Zeros if there are none."""
    if len(send) == 0:
        return send.new_zeros((rows, *send.shape[1:]))
    received = send.new_empty((rows, *send.shape[1:]))
    for begin in range(0, rows, len(send)):
        part = received[begin : begin + len(send)]
        part.copy_(send[: len(part)])
    return received
