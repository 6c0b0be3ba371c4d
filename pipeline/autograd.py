"""What autograd has recorded between a loss and its leaves, and hooks on its operations that do not outlive it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

Input = tuple[Node, int]


class Graph:
    """The operations whose backward leads from a loss to its leaves.

    `users[node]` are the operations that have used the node's result, each with the place of that input.
    """

    def __init__(self, loss: Tensor) -> None:
        self.loss = loss

    @cached_property
    def users(self) -> dict[Node, list[Input]]:
        first = self.loss.grad_fn
        users: dict[Node, list[Input]] = {} if first is None else {first: []}
        ahead = list(users)
        while ahead:
            node = ahead.pop()
            for place, (used, _) in enumerate(node.next_functions):
                if used is None:
                    continue
                if used not in users:
                    users[used] = []
                    ahead.append(used)
                users[used].append((node, place))
        return users

    @property
    def operations(self) -> list[Node]:
        """All but the leaves. Leaves outlive the graph, and would collect a hook in every step."""
        return [node for node in self.users if node.next_functions]

    @cached_property
    def leaves(self) -> dict[Node, Tensor]:
        """The tensors that get a gradient, by the node that adds it up."""
        return {node: leaf for node in self.users if (leaf := getattr(node, "variable", None)) is not None}

    def leading_to(self, leaves: Iterable[Node]) -> set[Node]:
        """The operations whose backward contributes to the gradient of any of these leaves."""
        found: set[Node] = set()
        ahead = [leaf for leaf in leaves if leaf in self.users]
        while ahead:
            for user, _ in self.users[ahead.pop()]:
                if user not in found:
                    found.add(user)
                    ahead.append(user)
        return found


@contextmanager
def before_each(operations: Iterable[Node], hook: Callable[[Node, tuple[Tensor | None, ...]], Any]) -> Iterator[None]:
    """Call `hook(operation, gradients of its results)` before the backward of each of these operations."""

    def call(operation: Node) -> Callable[[tuple[Tensor | None, ...]], None]:
        def before(gradients: tuple[Tensor | None, ...]) -> None:
            hook(operation, gradients)

        return before

    handles: list[RemovableHandle] = [operation.register_prehook(call(operation)) for operation in operations]
    try:
        yield
    finally:
        # The garbage collector cannot see into the graph: hooks left there would keep the whole pipeline alive.
        for handle in handles:
            handle.remove()


@contextmanager
def polled(graph: Graph, poll: Callable[[], bool]) -> Iterator[None]:
    """Call `poll` before the backward of each operation, unless it says at first that nothing may come."""
    with before_each(graph.operations if poll() else (), lambda *_: poll()):
        yield
