"""Backward in two parts: first what leads to the embeddings, later the weight gradients of linear layers on the way.

Embedding gradients can so be sent while weight gradients, about half of backward's work, are still computed. The two
parts of a linear layer's backward have long been told apart to fill bubbles of pipeline parallelism (Qi et al., "Zero
Bubble Pipeline Parallelism", 2023); here they fill the time of a transfer. The price is memory: the input and the
output gradient of such a layer live until the second part.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn.parallel import DistributedDataParallel

from pipeline.autograd import Graph, before_each, polled


@dataclass(frozen=True)
class Form:
    """How autograd records `x @ weight.t() + bias`: the places of its inputs, and the name under which it saves x."""

    x: str
    weight: int
    bias: int | None


FORMS = {"AddmmBackward0": Form("mat1", weight=2, bias=0), "MmBackward0": Form("self", weight=1, bias=None)}


@dataclass(frozen=True)
class Operand:
    """A weight or bias as a layer uses it: the parameter itself, or what autocast has converted it to for all its uses.

    `node` is where the gradients of those uses add up.
    """

    node: Node
    parameter: Tensor = field(compare=False)

    @classmethod
    def of(cls, node: Node | None, graph: Graph) -> "Operand | None":
        """None for what is computed in another way, and for a parameter that is used for something else, too."""
        if node is None or node in graph.leaves:
            return None if node is None else cls(node, graph.leaves[node])
        leaf = node.next_functions[0][0] if node.name() == "ToCopyBackward0" else None
        if leaf is None or leaf not in graph.leaves or len(graph.users[leaf]) > 1:
            return None
        return cls(node, graph.leaves[leaf])

    @property
    def is_plain(self) -> bool:
        return self.parameter.is_contiguous() and not self.parameter.is_complex()


@dataclass(frozen=True)
class Layer:
    """A linear layer's use in a graph: its operation, and those of its operands whose gradients are left for later."""

    operation: Node
    form: Form
    weight: Operand | None
    bias: Operand | None

    @classmethod
    def of(cls, operation: Node, graph: Graph) -> "Layer | None":
        """None for anything but a linear layer whose gradients are nothing but `g.t() @ x` and the sum of g."""
        form = FORMS.get(operation.name())
        if form is None or not _scales_by_one(operation, form):
            return None
        transposed = operation.next_functions[form.weight][0]
        if transposed is None or transposed.name() != "TBackward0" or len(graph.users[transposed]) > 1:
            return None
        weight = Operand.of(transposed.next_functions[0][0], graph)
        if weight is None or not weight.is_plain:
            return None
        # A hook on x (activation checkpointing has one) may be asked for it only once, which the operation does.
        if getattr(operation, f"_raw_saved_{form.x}").unpack_hook is not None:
            return None
        bias = None if form.bias is None else Operand.of(operation.next_functions[form.bias][0], graph)
        return cls(operation, form, weight, bias)

    @property
    def operands(self) -> list[Operand]:
        return [each for each in (self.weight, self.bias) if each is not None]

    def only(self, postponed: set[Operand]) -> "Layer":
        """Without the operands that are not among these."""
        return replace(
            self,
            weight=self.weight if self.weight in postponed else None,
            bias=self.bias if self.bias in postponed else None,
        )


def _scales_by_one(operation: Any, form: Form) -> bool:
    return form.bias is None or operation._saved_alpha == operation._saved_beta == 1


@dataclass(frozen=True)
class Factors:
    """What the gradients of a layer's operands are made of: its input `[num_rows, in_features]` and the gradient of its
    output `[num_rows, out_features]`, which is None if the loss does not depend on it after all.
    """

    x: Tensor
    gradient: Tensor | None
    weight: Operand | None
    bias: Operand | None


class SplitBackward:
    """Splits a backward, unless DDP still has to learn from its order how to lay out the buckets: in which order ranks
    are summed depends on a gradient's place in its bucket.
    """

    def __init__(self, ddp: DistributedDataParallel | None) -> None:
        self._ddp = ddp
        self._factors: list[Factors] = []

    def to_embeddings(self, graph: Graph, embeddings: list[Tensor]) -> None:
        """Compute all gradients but those of the linear layers between the loss and the embeddings."""
        layers = _postponed_layers(graph, embeddings) if self._may_split else {}
        if not layers:
            torch.autograd.backward(graph.loss)
            return
        postponed = {id(operand.parameter) for layer in layers.values() for operand in layer.operands}

        def keep(operation: Node, gradients: tuple[Tensor | None, ...]) -> None:
            layer = layers[operation]
            x = getattr(operation, f"_saved_{layer.form.x}")
            self._factors.append(Factors(x, gradients[0], layer.weight, layer.bias))

        with before_each(layers, keep):
            torch.autograd.backward(
                graph.loss, inputs=[leaf for leaf in graph.leaves.values() if id(leaf) not in postponed]
            )

    @property
    def _may_split(self) -> bool:
        ddp = self._ddp
        return ddp is None or ddp._has_rebuilt_buckets or ddp.find_unused_parameters

    def weight_gradients(self, poll: Callable[[], bool]) -> None:
        """Compute what the last backward has left out."""
        factors, self._factors = self._factors, []
        if not factors:
            return
        # The engine takes the youngest operation first: so the gradients of a shared leaf add up in the same order.
        with torch.enable_grad():
            graph = Graph(torch.stack(list(_products(factors[::-1]))).sum())
        with polled(graph, poll):
            torch.autograd.backward(graph.loss)


def _postponed_layers(graph: Graph, embeddings: list[Tensor]) -> dict[Node, Layer]:
    """The layers on the way to the embeddings by operation, each with those leaves that nothing else uses."""
    of_embeddings = {id(embedding) for embedding in embeddings}
    on_the_way = graph.leading_to([node for node, leaf in graph.leaves.items() if id(leaf) in of_embeddings])
    layers = [layer for operation in on_the_way if (layer := Layer.of(operation, graph)) is not None]
    uses = Counter(operand for layer in layers for operand in layer.operands)
    postponed = {operand for operand, count in uses.items() if count == len(graph.users[operand.node])}
    return {layer.operation: layer.only(postponed) for layer in layers if postponed.intersection(layer.operands)}


def _products(layers: list[Factors]) -> Iterator[Tensor]:
    """What stands in for each layer's forward. A converted operand is converted once for all its uses, as before."""
    converted: dict[Operand, Tensor] = {}

    def as_used(operand: Operand | None, dtype: torch.dtype) -> Tensor | None:
        if operand is None:
            return None
        if operand not in converted:
            converted[operand] = operand.parameter.to(dtype)
        return converted[operand]

    for each in layers:
        yield _product(each, as_used(each.bias, each.x.dtype), as_used(each.weight, each.x.dtype))


class _Product(torch.autograd.Function):
    """Nothing in forward; in backward the gradients of a linear layer's bias and weight, in autograd's order."""

    @staticmethod
    def forward(ctx: Any, factors: Factors, bias: Tensor | None, weight: Tensor | None) -> Tensor:
        ctx.factors = factors
        return factors.x.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        factors: Factors = ctx.factors
        if factors.gradient is None:
            return None, None, None
        # As autograd itself does it, operand by operand. It also sums the rows to the shape of the bias.
        bias = None if factors.bias is None else factors.gradient
        weight = None if factors.weight is None else factors.gradient.t().mm(factors.x)
        return None, bias, weight


_product: Callable[[Factors, Tensor | None, Tensor | None], Tensor] = _Product.apply
