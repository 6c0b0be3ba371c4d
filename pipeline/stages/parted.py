"""Embeddings that travel in two parts: `prioritized`."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.types import QuantizedCommCodec

from pipeline.exchange import OwnerPart, Part
from pipeline.executor import Inputs, StageFunction
from pipeline.report import CollectiveName, Partition
from pipeline.stages.batch import Received
from pipeline.stages.embedding import (
    Embeddings,
    backward_codec,
    decode,
    encode,
    forward_codec,
    look_up,
    merge,
    to_owner_order,
)
from pipeline.stages.overlap import Overlap, TrainerOverlap
from pipeline.tables import TableTime, advance, at, times_of, uncounted

OL, NOL = Partition.OL, Partition.NOL


@dataclass(frozen=True)
class WireGradient:
    """One part of a sharding group's gradient on the wire, `[num_ids, dim]`, and how much goes to each owner."""

    wire: Tensor
    splits: list[int]


@dataclass(frozen=True)
class PartedGradients:
    """Per partition and sharding group what travels, or None where nothing does: the loss did not depend on the group,
    or it is the OL part of the last batch, whose rows no later batch reads. `times` are those of the batch.
    """

    parts: dict[Partition, list[WireGradient | None]]
    times: list[list[TableTime]]


class PartedEmbeddings(Embeddings):
    """`lookup`, `embedding_a2a`, `gradient_a2a`, `apply`, each for OL and NOL rows."""

    def functions(self) -> dict[str, StageFunction]:
        return {
            f"{part.value}_{stage}": partial(function, part)
            for part in Partition
            for stage, function in (
                ("lookup", self.lookup),
                ("embedding_a2a", self.embedding_a2a),
                ("gradient_a2a", self.gradient_a2a),
                ("apply", self.apply),
            )
        }

    def lookup(self, part: Partition, inputs: Inputs) -> list[Tensor]:
        """Without a graph: the gradient comes back parted by the next batch, so it needs a lookup of its own."""
        overlap: Overlap = inputs("overlap")
        found = []
        for group, split in zip(self._sharding_groups, overlap.splits, strict=True):
            with torch.no_grad(), uncounted(group.tables):
                # A rank without tables gets a stand-in of TorchRec's that asks for a gradient all the same.
                found.append(look_up(group, split.part(part).features).detach())
        return found

    def embedding_a2a(self, part: Partition, inputs: Inputs) -> list[Tensor]:
        overlap: Overlap = inputs("overlap")
        trainer: TrainerOverlap = inputs("partition")
        arriving = []
        for group, rows, owner_split, trainer_split in zip(
            self._sharding_groups, inputs(f"{part}_lookup"), overlap.splits, trainer.splits, strict=True
        ):
            owner, wanted = owner_split.part(part).part, trainer_split.part(part)
            arriving.append(
                self._runtime.all_to_all(
                    CollectiveName.EMBEDDING,
                    part,
                    self._group_of(part),
                    encode(forward_codec(group), rows[owner.index]),
                    owner.splits,
                    wanted.splits,
                )
            )
        return arriving

    def arrived(self, inputs: Inputs) -> list[Tensor]:
        trainer: TrainerOverlap = inputs("partition")
        found = []
        for group, ol, nol, split in zip(
            self._sharding_groups, inputs("ol_embedding_a2a"), inputs("nol_embedding_a2a"), trainer.splits, strict=True
        ):
            codec = forward_codec(group)
            found.append(merge([(split.ol, decode(codec, ol)), (split.nol, decode(codec, nol))]))
        return found

    def count(self, called: list[bool]) -> list[list[TableTime]]:
        return [
            advance(group.tables) if counts else times_of(group.tables)
            for group, counts in zip(self._sharding_groups, called, strict=True)
        ]

    def split(self, inputs: Inputs, gradients: list[Tensor | None], times: list[list[TableTime]]) -> PartedGradients:
        ends = self._trainer_ends(inputs)
        return PartedGradients(
            {
                part: [
                    None if gradient is None or end is None else _on_the_wire(backward_codec(group), gradient, end)
                    for group, gradient, end in zip(self._sharding_groups, gradients, ends[part], strict=True)
                ]
                for part in Partition
            },
            times,
        )

    def gradient_a2a(self, part: Partition, inputs: Inputs) -> PartedGradients:
        gradients: PartedGradients = inputs("backward")
        arriving: list[WireGradient | None] = []
        for sent, owner in zip(gradients.parts[part], _owners(part, inputs), strict=True):
            if sent is None or owner is None:
                arriving.append(None)
                continue
            splits = owner.part.splits
            wire = self._runtime.all_to_all(
                CollectiveName.GRADIENT, part, self._group_of(part), sent.wire, sent.splits, splits
            )
            arriving.append(WireGradient(wire, splits))
        return PartedGradients({part: arriving}, gradients.times)

    def apply(self, part: Partition, inputs: Inputs) -> None:
        gradients: PartedGradients = inputs(f"{part}_gradient_a2a")
        world_size = self._groups.priority.size()
        for group, arrived, times, owner in zip(
            self._sharding_groups, gradients.parts[part], gradients.times, _owners(part, inputs), strict=True
        ):
            if arrived is None or owner is None:
                continue
            gradient = to_owner_order(owner.part, decode(backward_codec(group), arrived.wire), world_size)
            # A backward under way, which this may be run from, has switched gradients off.
            with at(group.tables, times), torch.enable_grad():
                rows = look_up(group, owner.features)
                torch.autograd.backward(rows, gradient)

    def _trainer_ends(self, inputs: Inputs) -> dict[Partition, list[Part] | list[None]]:
        """Where the gradients of a batch go, parted by the next batch; all NOL where there is none."""
        by_next: TrainerOverlap | None = inputs("partition", +1)
        if by_next is None:
            received: Received = inputs("receive")
            return {OL: [None for _ in received.exchanges], NOL: [each.trainer for each in received.exchanges]}
        assert by_next.previous is not None, "the next batch was parted without this one"
        splits = by_next.previous
        return {part: [split.part(part) for split in splits] for part in Partition}

    def _group_of(self, part: Partition) -> dist.ProcessGroup:
        return self._groups.priority if part is OL else self._groups.background


def _on_the_wire(codec: QuantizedCommCodec[Any] | None, gradient: Tensor, end: Part) -> WireGradient:
    return WireGradient(encode(codec, gradient[end.index]), end.splits)


def _owners(part: Partition, inputs: Inputs) -> list[OwnerPart] | list[None]:
    """The owner's ends of a batch's gradients, parted by the next batch; all NOL where there is none."""
    by_next: Overlap | None = inputs("overlap", +1)
    received: Received = inputs("receive")
    if by_next is None:
        return [None for _ in received.exchanges] if part is OL else [each.owner for each in received.exchanges]
    assert by_next.previous is not None, "the next batch was parted without this one"
    return [split.part(part) for split in by_next.previous]
