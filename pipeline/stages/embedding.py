"""What whole and parted embeddings have in common: lookup, update, and the two ways between wire and batch order."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from pipeline.exchange import Part
from pipeline.executor import Inputs, StageFunction
from pipeline.modules import Group
from pipeline.runtime import Runtime


@dataclass(frozen=True)
class ProcessGroups:
    """Separate for priority and background traffic, so that a large NOL transfer never holds back a small OL one."""

    priority: dist.ProcessGroup
    background: dist.ProcessGroup


class Embeddings(ABC):
    """The embedding side of a schedule: its own stages, and what forward and backward exchange with it."""

    def __init__(self, sharding_groups: list[Group], groups: ProcessGroups, runtime: Runtime) -> None:
        self._sharding_groups = sharding_groups
        self._groups = groups
        self._runtime = runtime

    @abstractmethod
    def functions(self) -> dict[str, StageFunction]:
        """The embedding stages by name."""

    @abstractmethod
    def arrived(self, inputs: Inputs) -> list[Tensor]:
        """For forward: each sharding group's embeddings in trainer order, `[num_trainer_ids, dim]`."""

    @abstractmethod
    def split(self, inputs: Inputs, gradients: list[Tensor]) -> Any:
        """For backward: the gradients of those, `[num_trainer_ids, dim]`, made ready for the wire."""


def look_up(group: Group, features: KeyedJaggedTensor) -> Tensor:
    """The rows of the given ids, `[num_ids, dim]` in owner order."""
    rows: Tensor = group.lookup(features).view(-1, group.dim)
    return rows


def merge(shape: tuple[int, int], arrivals: list[tuple[Part, Tensor]]) -> Tensor:
    """Put what came over the wire, `[num_ids, dim]` each, into its place. Together the parts fill every place."""
    merged = arrivals[0][1].new_empty(shape)
    for part, wire in arrivals:
        merged.index_copy_(0, part.index, wire)
    return merged


def to_owner_order(part: Part, wire: Tensor, world_size: int) -> Tensor:
    """Received gradients, `[num_ids, dim]` in wire order, as the table lookup expects them.

    Peers send in rank-major order, the tables want feature-major; and the mean over ranks is taken here, as TorchRec
    does unless `set_gradient_division(False)`.
    """
    ordered = torch.empty_like(wire).index_copy_(0, part.index, wire)
    return ordered.div_(world_size) if get_gradient_division() else ordered


def learning_rates(groups: list[Group]) -> list[list[float]]:
    """The current rate of every fused optimizer, per sharding group and table batch."""
    return [[float(table.get_learning_rate()) for table in group.tables] for group in groups]


@contextmanager
def at_rates(group: Group, rates: list[float]) -> Iterator[None]:
    """Update with the rates of the batch that a gradient belongs to, whatever a scheduler has set since."""
    [current] = learning_rates([group])
    if current == rates:
        yield
        return
    for table, rate in zip(group.tables, rates, strict=True):
        table.set_learning_rate(rate)
    try:
        yield
    finally:
        for table, rate in zip(group.tables, current, strict=True):
            table.set_learning_rate(rate)
