"""Embeddings that travel in two parts: `prioritized`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.exchange import OwnerPart
from pipeline.executor import Inputs, StageFunction
from pipeline.report import CollectiveName, Partition
from pipeline.stages.batch import Received
from pipeline.stages.embedding import Embeddings, at_rates, learning_rates, look_up, merge, to_owner_order
from pipeline.stages.overlap import Overlap, TrainerOverlap

OL, NOL = Partition.OL, Partition.NOL


@dataclass(frozen=True)
class PartedGradients:
    """Per partition and sharding group: the gradient on the wire, `[num_ids, dim]`, and how much goes to each owner.

    Under `OL` there is nothing for the last batch: no later batch reads its rows. `rates` are those of its batch.
    """

    wire: dict[Partition, list[Tensor]]
    splits: dict[Partition, list[list[int]]]
    rates: list[list[float]]


class PartedEmbeddings(Embeddings):
    """`lookup`, `embedding_a2a`, `gradient_a2a`, `apply`, each for OL and NOL rows."""

    def functions(self) -> dict[str, StageFunction]:
        return {
            f"{name}_{stage}": partial(function, part)
            for name, part in (("ol", OL), ("nol", NOL))
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
        with torch.no_grad():
            return [
                look_up(group, (split.ol if part is OL else split.nol).features)
                for group, split in zip(self._sharding_groups, overlap.splits, strict=True)
            ]

    def embedding_a2a(self, part: Partition, inputs: Inputs) -> list[Tensor]:
        overlap: Overlap = inputs("overlap")
        trainer: TrainerOverlap = inputs("partition")
        ends = [
            (owner.ol.part, trainer.ol) if part is OL else (owner.nol.part, trainer.nol)
            for owner, trainer in zip(overlap.splits, trainer.splits, strict=True)
        ]
        return [
            self._runtime.all_to_all(
                CollectiveName.EMBEDDING,
                part,
                self._group_of(part),
                rows[owner.index],
                owner.splits,
                trainer_end.splits,
            )
            for rows, (owner, trainer_end) in zip(inputs(f"{part}_lookup"), ends, strict=True)
        ]

    def arrived(self, inputs: Inputs) -> list[Tensor]:
        trainer: TrainerOverlap = inputs("partition")
        return [
            merge((len(ol) + len(nol), ol.shape[1]), [(split.ol, ol), (split.nol, nol)])
            for ol, nol, split in zip(
                inputs("ol_embedding_a2a"), inputs("nol_embedding_a2a"), trainer.splits, strict=True
            )
        ]

    def split(self, inputs: Inputs, gradients: list[Tensor]) -> PartedGradients:
        rates = learning_rates(self._sharding_groups)
        by_next: TrainerOverlap | None = inputs("partition", +1)
        if by_next is None:
            received: Received = inputs("receive")
            trainers = [exchange.trainer for exchange in received.exchanges]
            wire = [gradient[end.index] for gradient, end in zip(gradients, trainers, strict=True)]
            return PartedGradients({OL: [], NOL: wire}, {OL: [], NOL: [end.splits for end in trainers]}, rates)
        assert by_next.previous is not None, "the next batch was parted without this one"
        ol = [split.ol for split in by_next.previous]
        nol = [split.nol for split in by_next.previous]
        return PartedGradients(
            {
                OL: [gradient[end.index] for gradient, end in zip(gradients, ol, strict=True)],
                NOL: [gradient[end.index] for gradient, end in zip(gradients, nol, strict=True)],
            },
            {OL: [end.splits for end in ol], NOL: [end.splits for end in nol]},
            rates,
        )

    def gradient_a2a(self, part: Partition, inputs: Inputs) -> PartedGradients:
        gradients: PartedGradients = inputs("backward")
        arriving = [
            self._runtime.all_to_all(
                CollectiveName.GRADIENT, part, self._group_of(part), wire, splits, owner.part.splits
            )
            for wire, splits, owner in zip(
                gradients.wire[part], gradients.splits[part], _owners_by_next(part, inputs), strict=True
            )
        ]
        return PartedGradients({part: arriving}, {}, gradients.rates)

    def apply(self, part: Partition, inputs: Inputs) -> None:
        gradients: PartedGradients = inputs(f"{part}_gradient_a2a")
        world_size = self._groups.priority.size()
        owners = list(_owners_by_next(part, inputs))
        groups = self._sharding_groups[: len(owners)]
        for group, wire, rates, owner in zip(groups, gradients.wire[part], gradients.rates, owners, strict=False):
            with at_rates(group, rates):
                rows = look_up(group, owner.features)
                torch.autograd.backward(rows, to_owner_order(owner.part, wire, world_size))

    def _group_of(self, part: Partition) -> dist.ProcessGroup:
        return self._groups.priority if part is OL else self._groups.background


def _owners_by_next(part: Partition, inputs: Inputs) -> Iterator[OwnerPart]:
    """The owner's ends of a batch's gradients, parted by the next batch; all NOL where there is none."""
    by_next: Overlap | None = inputs("overlap", +1)
    received: Received = inputs("receive")
    if by_next is None:
        yield from (exchange.owner for exchange in received.exchanges if part is NOL)
    else:
        assert by_next.previous is not None, "the next batch was parted without this one"
        yield from (split.ol if part is OL else split.nol for split in by_next.previous)
