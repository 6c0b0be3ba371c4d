"""What the executor and the stages ask of a runtime."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.report import CollectiveName, Partition
from pipeline.schedule import Lane
from pipeline.timeline import Flight, Timeline


class Work(Protocol):
    """The handle of a collective: what the runtimes need of `torch.distributed.Work`."""

    def wait(self) -> object:
        """Let the current lane wait for it."""
        ...

    def get_future(self) -> "torch.futures.Future[Any]":
        """Done when the collective is."""
        ...


@dataclass(frozen=True)
class Pending:
    """A collective in flight and the handle to wait for it."""

    flight: Flight[Any]
    work: Work


@dataclass(frozen=True)
class Output:
    """What a stage produced for one batch: its value, the collectives it started, and when its lane had done it."""

    value: Any
    lane: Lane
    pending: tuple[Pending, ...]
    done: Any


class Runtime(ABC):
    """Runs stages on lanes and starts collectives. One per rank and pipeline."""

    timeline: Timeline[Any]

    def __init__(self) -> None:
        self._started: list[Pending] = []

    @abstractmethod
    def lane(self, lane: Lane) -> AbstractContextManager[None]:
        """Everything inside runs on this lane."""

    @abstractmethod
    def fence(self, lane: Lane, output: Output) -> None:
        """Let the lane wait until `output` is there, and keep its tensors alive for the lane."""

    @abstractmethod
    def arrived(self, output: Output) -> bool:
        """Whether a fence on `output` would hold up the host no more."""

    @abstractmethod
    def reached(self, output: Output) -> bool:
        """Whether `output` is there by now, so that what needs it would hold up nothing behind it."""

    @abstractmethod
    def finish(self, lane: Lane, value: Any) -> Output:
        """Close a stage, still on its lane: its value, with what it started."""

    @abstractmethod
    def start(self, pending: Pending) -> None:
        """A collective was issued on the current lane, which is done when the collective is."""

    @abstractmethod
    def join(self, pending: Pending) -> None:
        """The current lane is done when this collective, issued from another lane, is."""

    def gather(self, issued: Iterable[Pending]) -> None:
        """The present stage answers for collectives that `all_reduce_beside` has started."""
        for pending in issued:
            self.join(pending)
            self._started.append(pending)

    def watch(self, pending: Pending) -> None:
        """Note the moment in which a collective ends, without any lane waiting for it."""

        def ended(_: object) -> None:
            pending.flight.end = self.moment()

        pending.work.get_future().then(ended)

    @abstractmethod
    def moment(self) -> Any:
        """Now, on the current lane."""

    def all_to_all(
        self,
        name: CollectiveName,
        partition: Partition | None,
        group: dist.ProcessGroup,
        send: Tensor,
        send_splits: list[int],
        receive_splits: list[int],
    ) -> Tensor:
        """Start an AllToAll of rows, `[sum(send_splits), ...]` to `[sum(receive_splits), ...]`; do not wait for it."""
        received = send.new_empty((sum(receive_splits), *send.shape[1:]))
        row_bytes = send.element_size() * math.prod(send.shape[1:])
        own = group.rank()
        flight = self.timeline.fly(
            name,
            partition,
            (sum(send_splits) - send_splits[own]) * row_bytes,
            (sum(receive_splits) - receive_splits[own]) * row_bytes,
        )
        work = self._transfer(group, received, send.contiguous(), receive_splits, send_splits)
        self._begin(Pending(flight, work))
        return received

    def _transfer(
        self,
        group: dist.ProcessGroup,
        received: Tensor,
        send: Tensor,
        receive_splits: list[int],
        send_splits: list[int],
    ) -> Work:
        """Start moving the rows of an AllToAll, with what the backend does best."""
        work: Work = dist.all_to_all_single(received, send, receive_splits, send_splits, group=group, async_op=True)
        return work

    def all_reduce_beside(self, name: CollectiveName, group: dist.ProcessGroup, tensor: Tensor) -> Pending:
        """Start an in-place sum over the ranks that belongs to no stage until one gathers it. For DDP's buckets.

        Bytes are those of a ring: 2 (n-1)/n of the tensor in each direction.
        """
        share = 2 * (group.size() - 1) * tensor.numel() * tensor.element_size() // group.size()
        flight = self.timeline.fly(name, None, share, share)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        pending = Pending(flight, work)
        self.watch(pending)
        return pending

    def adopt(self, name: CollectiveName, works: Iterable[dist.Work], bytes_sent: int, bytes_received: int) -> None:
        """Take over collectives that TorchRec has just issued, so that fences wait for them and they are measured."""
        for work in works:
            self._begin(Pending(self.timeline.fly(name, None, bytes_sent, bytes_received), work))
            bytes_sent = bytes_received = 0

    def waited(self, flights: Iterable[Flight[Any]], begin: Any, end: Any) -> None:
        """The compute lane waited for these flights in this interval."""
        for flight in flights:
            flight.waits.append((begin, end))

    def _begin(self, pending: Pending) -> None:
        self.start(pending)
        self._started.append(pending)

    def _take_started(self) -> tuple[Pending, ...]:
        started, self._started = tuple(self._started), []
        return started


def tensors_in(value: object) -> Iterable[Any]:
    """Whatever in a stage's value knows `record_stream`: tensors, TorchRec's streamables, and their containers."""
    if isinstance(value, torch.Tensor) or callable(getattr(value, "record_stream", None)):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
