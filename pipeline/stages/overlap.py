"""What batch b shares with b-1: found by the owner of each row, told to the trainers."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline import masks
from pipeline.exchange import OwnerSplit, TrainerSplit, common_rows
from pipeline.executor import Inputs, StageFunction
from pipeline.report import CollectiveName
from pipeline.runtime import Runtime
from pipeline.stages.batch import Received


@dataclass(frozen=True)
class Overlap:
    """The owner's split, per sharding group.

    `splits` parts b for its lookups, `previous` parts b-1 for its gradients. For the first batch `previous` and
    `wire_masks` are None: nothing can be shared, and every rank knows. `wire_masks` arrives with the stage's fence.
    """

    splits: list[OwnerSplit]
    previous: list[OwnerSplit] | None
    wire_masks: Tensor | None


@dataclass(frozen=True)
class TrainerOverlap:
    """The trainer's split, per sharding group. `overlapped_ids` counts this rank's id occurrences of b that are OL."""

    splits: list[TrainerSplit]
    previous: list[TrainerSplit] | None

    @property
    def overlapped_ids(self) -> int:
        return sum(sum(split.ol.splits) for split in self.splits)


class OverlapStages:
    """`overlap` on the owner, `partition` on the trainer. Both directions of a pair travel in one AllToAll."""

    def __init__(self, group: dist.ProcessGroup, runtime: Runtime) -> None:
        self._group = group
        self._runtime = runtime

    def functions(self) -> dict[str, StageFunction]:
        return {"overlap": self.overlap, "partition": self.partition}

    def overlap(self, inputs: Inputs) -> Overlap:
        received: Received = inputs("receive")
        before: Received | None = inputs("receive", -1)
        if before is None:
            nothing = [torch.zeros_like(exchange.rows, dtype=torch.bool) for exchange in received.exchanges]
            return Overlap(_owner_splits(received, nothing), None, None)
        found = [
            common_rows(exchange.rows, earlier.rows)
            for exchange, earlier in zip(received.exchanges, before.exchanges, strict=True)
        ]
        splits = _owner_splits(received, [mask for mask, _ in found])
        previous = _owner_splits(before, [mask for _, mask in found])
        if not found:
            return Overlap(splits, previous, None)
        exchanges = [*received.exchanges, *before.exchanges]
        wire = [
            split.mask[exchange.owner.part.index]
            for split, exchange in zip([*splits, *previous], exchanges, strict=True)
        ]
        packed, send_splits = masks.pack(wire, [exchange.owner.part.splits for exchange in exchanges])
        receive_splits = masks.sizes([exchange.trainer.splits for exchange in exchanges])
        arriving = self._runtime.all_to_all(
            CollectiveName.OVERLAP_MASK, None, self._group, packed, send_splits, receive_splits
        )
        return Overlap(splits, previous, arriving)

    def partition(self, inputs: Inputs) -> TrainerOverlap:
        overlap: Overlap = inputs("overlap")
        received: Received = inputs("receive")
        before: Received | None = inputs("receive", -1)
        if before is None or overlap.wire_masks is None:
            nothing = [torch.zeros_like(exchange.trainer.index, dtype=torch.bool) for exchange in received.exchanges]
            return TrainerOverlap(_trainer_splits(received, nothing), None if before is None else [])
        exchanges = [*received.exchanges, *before.exchanges]
        arrived = masks.unpack(overlap.wire_masks, [exchange.trainer.splits for exchange in exchanges])
        count = len(received.exchanges)
        return TrainerOverlap(_trainer_splits(received, arrived[:count]), _trainer_splits(before, arrived[count:]))


def _owner_splits(received: Received, found: list[Tensor]) -> list[OwnerSplit]:
    return [OwnerSplit.of(exchange, mask) for exchange, mask in zip(received.exchanges, found, strict=True)]


def _trainer_splits(received: Received, arrived: list[Tensor]) -> list[TrainerSplit]:
    return [TrainerSplit.of(exchange, mask) for exchange, mask in zip(received.exchanges, arrived, strict=True)]
