"""Embeddings that travel as a whole: `sync` and `sparse_dist`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.executor import Inputs, StageFunction
from pipeline.report import CollectiveName
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
from pipeline.tables import TableTime, at_rates, times_of, uncount


@dataclass(frozen=True)
class WholeGradients:
    """Per sharding group: the gradient on the wire, `[num_ids, dim]` (None: no update), and the time of its batch."""

    wire: list[Tensor | None]
    times: list[list[TableTime]]


class WholeEmbeddings(Embeddings):
    """`lookup`, `embedding_a2a`, `gradient_a2a`, `apply`."""

    def functions(self) -> dict[str, StageFunction]:
        return {
            "lookup": self.lookup,
            "embedding_a2a": self.embedding_a2a,
            "gradient_a2a": self.gradient_a2a,
            "apply": self.apply,
        }

    def lookup(self, inputs: Inputs) -> list[Tensor]:
        """With their autograd graph, through which `apply` later updates the tables."""
        received: Received = inputs("receive")
        return [
            look_up(group, exchange.owner.features)
            for group, exchange in zip(self._sharding_groups, received.exchanges, strict=True)
        ]

    def embedding_a2a(self, inputs: Inputs) -> list[Tensor]:
        received: Received = inputs("receive")
        return [
            self._runtime.all_to_all(
                CollectiveName.EMBEDDING,
                None,
                self._groups.priority,
                encode(forward_codec(group), rows.detach()[exchange.owner.part.index]),
                exchange.owner.part.splits,
                exchange.trainer.splits,
            )
            for group, rows, exchange in zip(self._sharding_groups, inputs("lookup"), received.exchanges, strict=True)
        ]

    def arrived(self, inputs: Inputs) -> list[Tensor]:
        received: Received = inputs("receive")
        return [
            merge([(exchange.trainer, decode(forward_codec(group), wire))])
            for group, wire, exchange in zip(
                self._sharding_groups, inputs("embedding_a2a"), received.exchanges, strict=True
            )
        ]

    def count(self, called: list[bool]) -> list[list[TableTime]]:
        for group, counts in zip(self._sharding_groups, called, strict=True):
            if not counts:
                uncount(group.tables)
        return [times_of(group.tables) for group in self._sharding_groups]

    def split(self, inputs: Inputs, gradients: list[Tensor | None], times: list[list[TableTime]]) -> WholeGradients:
        received: Received = inputs("receive")
        wire = [
            None if gradient is None else encode(backward_codec(group), gradient[exchange.trainer.index])
            for group, gradient, exchange in zip(self._sharding_groups, gradients, received.exchanges, strict=True)
        ]
        return WholeGradients(wire, times)

    def gradient_a2a(self, inputs: Inputs) -> WholeGradients:
        gradients: WholeGradients = inputs("backward")
        received: Received = inputs("receive")
        arriving = [
            None
            if wire is None
            else self._runtime.all_to_all(
                CollectiveName.GRADIENT,
                None,
                self._groups.priority,
                wire,
                exchange.trainer.splits,
                exchange.owner.part.splits,
            )
            for wire, exchange in zip(gradients.wire, received.exchanges, strict=True)
        ]
        return WholeGradients(arriving, gradients.times)

    def apply(self, inputs: Inputs) -> None:
        gradients: WholeGradients = inputs("gradient_a2a")
        received: Received = inputs("receive")
        world_size = self._groups.priority.size()
        for group, rows, wire, times, exchange in zip(
            self._sharding_groups, inputs("lookup"), gradients.wire, gradients.times, received.exchanges, strict=True
        ):
            if wire is not None:
                gradient = to_owner_order(exchange.owner.part, decode(backward_codec(group), wire), world_size)
                with at_rates(group.tables, times):
                    torch.autograd.backward(rows, gradient)
