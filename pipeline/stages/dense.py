"""The model itself: forward, backward, dense optimizer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.autograd import Graph, polled
from pipeline.dense_allreduce import DenseAllReduce
from pipeline.executor import Inputs, StageFunction
from pipeline.modules import Group, PrioritizedModule
from pipeline.split_backward import SplitBackward
from pipeline.stages.batch import Copied, Received
from pipeline.stages.embedding import Embeddings, look_up
from pipeline.tables import TableTime


@dataclass(frozen=True)
class Result:
    """Forward's outcome: losses, the model's output, the embeddings of each sharded group as leaves,
    `[num_trainer_ids, dim]`, and the time of the batch for its fused optimizers.
    """

    losses: Tensor
    output: Any
    leaves: list[Tensor]
    times: list[list[TableTime]]


class DenseStages:
    """`forward`, `backward`, `weight_gradients`, `dense_allreduce`, `optimizer`. Backward ends at the embeddings, whose
    gradients are only parted.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        modules: tuple[PrioritizedModule, ...],
        embeddings: Embeddings,
        dense_allreduce: DenseAllReduce | None,
        split_backward: SplitBackward | None,
        poll: Callable[[], bool],
    ) -> None:
        """`poll` is called before each operation of backward, unless it says at first that nothing may come. Without a
        `split_backward`, `backward` also computes what `weight_gradients` would.
        """
        self._model = model
        self._optimizer = optimizer
        self._modules = modules
        self._embeddings = embeddings
        self._dense_allreduce = dense_allreduce
        self._split_backward = split_backward
        self._poll = poll

    def functions(self) -> dict[str, StageFunction]:
        return {
            "forward": self.forward,
            "backward": self.backward,
            "weight_gradients": self.weight_gradients,
            "dense_allreduce": self.dense_allreduce,
            "optimizer": self.optimizer,
        }

    def forward(self, inputs: Inputs) -> Result:
        copied: Copied = inputs("copy_batch")
        received: Received = inputs("receive")
        leaves = [rows.requires_grad_() for rows in self._embeddings.arrived(inputs)]
        arrived, replicated = iter(leaves), iter(received.replicated)
        for module, context in zip(self._modules, received.contexts, strict=True):
            rows = [look_up(each, next(replicated)) if each.replicated else next(arrived) for each in module.groups]
            module.hand_over(context, rows)
        self._optimizer.zero_grad()
        losses, output = self._model(copied.batch)
        called = [(module, module.forward.leave_step()) for module in self._modules]
        per_group = [was for module, was in called for group in module.groups if not group.replicated]
        return Result(losses, output, leaves, self._embeddings.count(per_group))

    def backward(self, inputs: Inputs) -> Any:
        result: Result = inputs("forward")
        loss = torch.sum(result.losses, dim=0)
        graph = Graph(loss)
        with self._begun_only(), polled(graph, self._poll):
            if self._split_backward is None:
                torch.autograd.backward(loss)
            else:
                self._split_backward.to_embeddings(graph, result.leaves)
        gradients = [_gradient(leaf, group) for leaf, group in zip(result.leaves, self._sharded_groups(), strict=True)]
        return self._embeddings.split(inputs, gradients, result.times)

    def weight_gradients(self, inputs: Inputs) -> None:
        """Those that `backward` has left out."""
        inputs("backward")
        assert self._split_backward is not None, "backward has left nothing out"
        with self._begun_only():
            self._split_backward.weight_gradients(self._poll)

    def _begun_only(self) -> AbstractContextManager[None]:
        return nullcontext() if self._dense_allreduce is None else self._dense_allreduce.begun_only()

    def dense_allreduce(self, inputs: Inputs) -> None:
        """The stage with the last gradient has begun the transfers; who needs this one waits for them."""
        inputs("backward" if self._split_backward is None else "weight_gradients")
        if self._dense_allreduce is not None:
            self._dense_allreduce.gather()

    def optimizer(self, inputs: Inputs) -> None:
        inputs("dense_allreduce")
        self._optimizer.step()

    def _sharded_groups(self) -> list[Group]:
        return [group for module in self._modules for group in module.groups if not group.replicated]


def _gradient(leaf: Tensor, group: Group) -> Tensor | None:
    """The gradient of a group's embeddings, `[num_trainer_ids, dim]`; None if its tables must not be updated.

    Plain training updates nothing where the loss does not depend on the embeddings. Where zeros change nothing either,
    they are sent all the same: then no rank waits for another that sees it differently.
    """
    if leaf.grad is not None:
        return leaf.grad
    return torch.zeros_like(leaf) if group.takes_zeros else None
