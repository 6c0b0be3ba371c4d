"""What whole and parted embeddings have in common: lookup, update, and the two ways between wire and batch order."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.types import QuantizedCommCodec
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from pipeline.exchange import Part
from pipeline.executor import Inputs, StageFunction
from pipeline.modules import Group
from pipeline.runtime import Runtime
from pipeline.tables import TableTime


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
    def count(self, called: list[bool]) -> list[list[TableTime]]:
        """After forward: the time of this batch per sharding group, counted where the model called its module."""

    @abstractmethod
    def arrived(self, inputs: Inputs) -> list[Tensor]:
        """For forward: each sharding group's embeddings in trainer order, `[num_trainer_ids, dim]`."""

    @abstractmethod
    def split(self, inputs: Inputs, gradients: list[Tensor | None], times: list[list[TableTime]]) -> Any:
        """For backward: the gradients of those, `[num_trainer_ids, dim]`, made ready for the wire.

        None stands for embeddings that the loss did not depend on, and that must then not be updated.
        """


def look_up(group: Group, features: KeyedJaggedTensor) -> Tensor:
    """The rows of the given ids, `[num_ids, dim]` in owner order."""
    rows: Tensor = group.lookup(features).view(-1, group.dim)
    return rows


def encode(codec: QuantizedCommCodec[Any] | None, rows: Tensor) -> Tensor:
    """Rows, `[num_ids, dim]`, as they travel. The codec converts value by value."""
    return rows if codec is None else codec.encode(rows.reshape(-1), codec.create_context()).view(rows.shape)


def decode(codec: QuantizedCommCodec[Any] | None, wire: Tensor) -> Tensor:
    """The reverse of `encode`."""
    return wire if codec is None else codec.decode(wire.reshape(-1), codec.create_context()).view(wire.shape)


def forward_codec(group: Group) -> QuantizedCommCodec[Any] | None:
    """The codec for embeddings on their way to the trainers."""
    return None if group.codecs is None else group.codecs.forward


def backward_codec(group: Group) -> QuantizedCommCodec[Any] | None:
    """The codec for gradients on their way to the owners."""
    return None if group.codecs is None else group.codecs.backward


def merge(arrivals: list[tuple[Part, Tensor]]) -> Tensor:
    """Put what came over the wire, `[num_ids, dim]` each, into its place. Together the parts fill every place."""
    ids = sum(len(wire) for _, wire in arrivals)
    merged = arrivals[0][1].new_empty((ids, arrivals[0][1].shape[1]))
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
