"""Embeddings that travel as a whole: `sync` and `sparse_dist`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.executor import Inputs, StageFunction
from pipeline.report import CollectiveName
from pipeline.stages.batch import Received
from pipeline.stages.embedding import Embeddings, at_rates, learning_rates, look_up, merge, to_owner_order


@dataclass(frozen=True)
class WholeGradients:
    """Per sharding group: the gradient on the wire, `[num_ids, dim]`, and the learning rates of its batch."""

    wire: list[Tensor]
    rates: list[list[float]]


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
                rows.detach()[exchange.owner.part.index],
                exchange.owner.part.splits,
                exchange.trainer.splits,
            )
            for rows, exchange in zip(inputs("lookup"), received.exchanges, strict=True)
        ]

    def arrived(self, inputs: Inputs) -> list[Tensor]:
        received: Received = inputs("receive")
        return [
            merge((wire.shape[0], wire.shape[1]), [(exchange.trainer, wire)])
            for wire, exchange in zip(inputs("embedding_a2a"), received.exchanges, strict=True)
        ]

    def split(self, inputs: Inputs, gradients: list[Tensor]) -> WholeGradients:
        received: Received = inputs("receive")
        wire = [
            gradient[exchange.trainer.index] for gradient, exchange in zip(gradients, received.exchanges, strict=True)
        ]
        return WholeGradients(wire, learning_rates(self._sharding_groups))

    def gradient_a2a(self, inputs: Inputs) -> WholeGradients:
        gradients: WholeGradients = inputs("backward")
        received: Received = inputs("receive")
        arriving = [
            self._runtime.all_to_all(
                CollectiveName.GRADIENT,
                None,
                self._groups.priority,
                wire,
                exchange.trainer.splits,
                exchange.owner.part.splits,
            )
            for wire, exchange in zip(gradients.wire, received.exchanges, strict=True)
        ]
        return WholeGradients(arriving, gradients.rates)

    def apply(self, inputs: Inputs) -> None:
        gradients: WholeGradients = inputs("gradient_a2a")
        received: Received = inputs("receive")
        world_size = self._groups.priority.size()
        for group, rows, wire, rates, exchange in zip(
            self._sharding_groups, inputs("lookup"), gradients.wire, gradients.rates, received.exchanges, strict=True
        ):
            with at_rates(group, rates):
                torch.autograd.backward(rows, to_owner_order(exchange.owner.part, wire, world_size))
