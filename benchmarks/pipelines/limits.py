"""Two limits: the same steps, in which rows, gradients and dense gradients stay where they are, or are not waited for.

The first is what compute alone takes. The second adds what a transfer costs the cores that compute: no schedule could
do better with this transport. What comes back has the same shape, and the values of what would have been sent. Ids and
overlap masks still travel, since the steps' shapes follow from them; they are small and leave early.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.report import CollectiveName, Partition
from pipeline.runtime import Runtime
from pipeline.runtime.base import Pending

STAYING = frozenset({CollectiveName.EMBEDDING, CollectiveName.GRADIENT})
# So many transfers may be under way; a step has about ten.
UNDER_WAY = 16


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


def same_shape(send: Tensor, rows: int) -> Tensor:
    """`rows` rows like those of `send`, which come again if they do not suffice. Zeros if there are none."""
    if len(send) == 0:
        return send.new_zeros((rows, *send.shape[1:]))
    received = send.new_empty((rows, *send.shape[1:]))
    for begin in range(0, rows, len(send)):
        part = received[begin : begin + len(send)]
        part.copy_(send[: len(part)])
    return received
