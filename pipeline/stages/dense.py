"""The model itself: forward, backward, dense optimizer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.dense_allreduce import DenseAllReduce
from pipeline.executor import Inputs, StageFunction
from pipeline.modules import PrioritizedModule
from pipeline.stages.batch import Copied, Received
from pipeline.stages.embedding import Embeddings


@dataclass(frozen=True)
class Result:
    """Forward's outcome: losses, the model's output, and the embeddings as leaves, `[num_trainer_ids, dim]` each."""

    losses: Tensor
    output: Any
    leaves: list[Tensor]


class DenseStages:
    """`forward`, `backward`, `optimizer`. Backward ends at the embeddings; their gradients are only split."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        modules: tuple[PrioritizedModule, ...],
        embeddings: Embeddings,
        dense_allreduce: DenseAllReduce | None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._modules = modules
        self._embeddings = embeddings
        self._dense_allreduce = dense_allreduce

    def functions(self) -> dict[str, StageFunction]:
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.optimizer}

    def forward(self, inputs: Inputs) -> Result:
        copied: Copied = inputs("copy_batch")
        received: Received = inputs("receive")
        leaves = [rows.requires_grad_() for rows in self._embeddings.arrived(inputs)]
        remaining = iter(leaves)
        for module, context in zip(self._modules, received.contexts, strict=True):
            module.hand_over(context, [next(remaining) for _ in module.groups])
        self._optimizer.zero_grad()
        losses, output = self._model(copied.batch)
        return Result(losses, output, leaves)

    def backward(self, inputs: Inputs) -> Any:
        result: Result = inputs("forward")
        torch.autograd.backward(torch.sum(result.losses, dim=0))
        if self._dense_allreduce is not None:
            self._dense_allreduce.backward_ended()
        # A leaf that the loss does not depend on has no gradient; its rows still take part in the transfers.
        gradients = [leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for leaf in result.leaves]
        return self._embeddings.split(inputs, gradients)

    def optimizer(self, inputs: Inputs) -> None:
        inputs("backward")
        self._optimizer.step()
