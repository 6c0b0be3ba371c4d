"""Backward in two parts gives the gradients of backward in one, bit for bit, and leaves out what it can."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.autograd import Graph
from pipeline.split_backward import SplitBackward

ROWS, DIM = 12, 8


class Case(nn.Module):
    """A model of rows, `[ROWS, DIM]`, and dense features, `[ROWS, DIM]`, that returns a loss.

    `postponed` names the parameters whose gradients can wait.
    """

    postponed: tuple[str, ...] = ()

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        raise NotImplementedError


class Chain(Case):
    """Two layers between the rows and the loss."""

    postponed = ("one.weight", "one.bias", "two.weight", "two.bias")

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, 1)

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        return self.two(self.one(rows).relu()).square().mean()


class Shared(Chain):
    """One layer used four times beside each other, so that the order of its sums shows."""

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        parts = [
            self.one(part * factor).tanh().sum(0) for part, factor in zip(rows.split(3), (1, 3, 5, 7), strict=True)
        ]
        return self.two(torch.stack(parts)).square().mean()


class InARow(Case):
    """One layer used three times after each other."""

    postponed = ("again.weight", "again.bias")

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(DIM, DIM)

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        for _ in range(3):
            rows = self.again(rows).tanh()
        return rows.square().mean()


class NoBias(Chain):
    postponed = ("one.weight", "two.weight")

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(DIM, 2 * DIM, bias=False), nn.Linear(2 * DIM, 1, bias=False)


class ThreeDimensions(Chain):
    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        return self.two(self.one(rows.view(3, 4, DIM)).relu()).square().mean()


class Transposed(Chain):
    """What is not contiguous goes through mm and an addition: only the weight is a layer's own."""

    postponed = ("one.weight", "two.weight")

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        hidden = self.one(rows.view(3, 4, DIM).transpose(0, 1)).relu()
        return self.two(hidden.transpose(0, 1)).square().mean()


class Normed(Chain):
    """A norm on the way keeps its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(2 * DIM)

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        return self.two(self.norm(self.one(rows))).square().mean()


class BesideTheWay(Chain):
    """A layer over dense features leads to no embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, 2 * DIM))

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        return self.two(self.one(rows) * self.bottom(dense)).square().mean()


class BothWays(Chain):
    """A layer over rows and over dense features: its gradients come from both, and are not postponed."""

    postponed = ("two.weight", "two.bias")

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        return self.two(self.one(rows) * self.one(dense)).square().mean()


class Tied(Chain):
    """A weight that is used as something else, too."""

    postponed = ("one.bias", "two.weight", "two.bias")

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        return self.two(self.one(rows)).square().mean() + self.one.weight.square().sum()


class Frozen(Chain):
    """A layer without a gradient for its weight is left as it is."""

    postponed = ("one.weight",)

    def __init__(self) -> None:
        super().__init__()
        self.one.bias.requires_grad_(False)
        self.two.weight.requires_grad_(False)


class Hooked(Chain):
    """Hooks of the user's see and change each gradient once."""

    def __init__(self) -> None:
        super().__init__()
        self.one.weight.register_hook(lambda gradient: gradient * 3)
        self.two.bias.register_hook(lambda gradient: gradient + 1)

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        hidden = self.one(rows)
        hidden.register_hook(lambda gradient: gradient * 2)
        return self.two(hidden.relu()).square().mean()


class Checkpointed(Chain):
    """What is computed again in backward can be asked for once only."""

    postponed = ("two.weight", "two.bias")

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        return self.two(checkpoint(lambda each: self.one(each).relu(), rows, use_reentrant=False)).square().mean()


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:  # type: ignore[override]
        return None


class Independent(Chain):
    """The loss turns out not to depend on a layer."""

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        return _Nothing.apply(self.two(self.one(rows))).mean() + rows.sum()


class Narrow(Chain):
    """Autocast converts parameters on the way."""

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.two(self.one(rows).relu()).square().float().mean()


class NarrowShared(Shared):
    """Autocast converts a parameter once for all its uses, whose gradients add up in 16 bits."""

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(rows, dense).float()


class NarrowAndWide(Chain):
    """A parameter that is used converted and as it is."""

    postponed = ("two.weight", "two.bias")

    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        wide = self.one(rows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.two((self.one(rows) + wide).relu()).square().float().mean()


CASES = [
    Chain,
    Shared,
    InARow,
    NoBias,
    ThreeDimensions,
    Transposed,
    Normed,
    BesideTheWay,
    BothWays,
    Tied,
    Frozen,
    Hooked,
    Checkpointed,
    Independent,
    Narrow,
    NarrowShared,
    NarrowAndWide,
]


@dataclass(frozen=True)
class Inputs:
    rows: Tensor
    dense: Tensor

    @classmethod
    def random(cls, seed: int) -> "Inputs":
        generator = torch.Generator().manual_seed(seed)
        rows, dense = torch.randn((2, ROWS, DIM), generator=generator)
        return cls(rows.requires_grad_(), dense)


def gradients(case: Case, inputs: Inputs) -> dict[str, Tensor | None]:
    return {"rows": inputs.rows.grad, **{name: each.grad for name, each in case.named_parameters()}}


def model(kind: type[Case]) -> Case:
    torch.manual_seed(0)
    return kind()


def differing(one: dict[str, Tensor | None], other: dict[str, Tensor | None]) -> list[str]:
    """The names under which the two are not equal."""
    return [
        name
        for name, mine in one.items()
        if not ((mine is None) is (other[name] is None) and (mine is None or torch.equal(mine, other[name])))
    ]


def never() -> bool:
    return False


@pytest.mark.parametrize("kind", CASES)
def test_the_gradients_are_those_of_one_backward(kind: type[Case]) -> None:
    plain, split, backward = model(kind), model(kind), SplitBackward(None)
    # Gradients add up over the steps.
    for seed in range(3):
        expected, inputs = Inputs.random(seed), Inputs.random(seed)
        plain(expected.rows, expected.dense).backward()
        before = gradients(split, inputs)
        kept = {name: None if each is None else each.clone() for name, each in before.items()}
        backward.to_embeddings(Graph(split(inputs.rows, inputs.dense)), [inputs.rows])
        assert inputs.rows.grad is not None
        left_out = {
            name for name in kept if name != "rows" and not differing({name: kept[name]}, gradients(split, inputs))
        }
        untouched = {name for name, each in split.named_parameters() if not each.requires_grad}
        assert left_out - untouched == set(kind.postponed)
        backward.weight_gradients(never)
        assert differing(gradients(plain, expected), gradients(split, inputs)) == []


class StillLearning:
    """A DDP that has not laid out its buckets for good."""

    find_unused_parameters = False
    _has_rebuilt_buckets = False


def test_a_backward_is_whole_until_ddp_has_laid_out_its_buckets() -> None:
    ddp: Any = StillLearning()
    case, backward = model(Chain), SplitBackward(ddp)
    for learnt in (False, True):
        ddp._has_rebuilt_buckets, inputs = learnt, Inputs.random(0)
        case.zero_grad()
        backward.to_embeddings(Graph(case(inputs.rows, inputs.dense)), [inputs.rows])
        assert all((each.grad is None) is learnt for each in case.parameters())


def test_every_hook_on_a_parameter_runs_once_and_in_the_order_of_one_backward() -> None:
    """DDP counts on both."""

    def order(step: Callable[[Case, Inputs], None]) -> list[str]:
        case, ready = model(Normed), list[str]()
        for name, each in case.named_parameters():
            each.register_post_accumulate_grad_hook(lambda _, name=name: ready.append(name))  # type: ignore[misc]
        step(case, Inputs.random(0))
        return ready

    def split(case: Case, inputs: Inputs) -> None:
        backward = SplitBackward(None)
        backward.to_embeddings(Graph(case(inputs.rows, inputs.dense)), [inputs.rows])
        backward.weight_gradients(never)

    plain = order(lambda case, inputs: case(inputs.rows, inputs.dense).backward())
    assert sorted(order(split)) == sorted(plain)
    assert len(set(plain)) == len(plain) == 6
    assert [name for name in order(split) if "norm" not in name] == [name for name in plain if "norm" not in name]


def test_what_may_come_is_polled_for_between_the_products() -> None:
    case, inputs, backward = model(Chain), Inputs.random(0), SplitBackward(None)
    backward.to_embeddings(Graph(case(inputs.rows, inputs.dense)), [inputs.rows])
    seen: list[bool] = []

    def poll() -> bool:
        seen.append(case.two.weight.grad is not None)
        return True

    backward.weight_gradients(poll)
    assert seen[0] is False
    assert seen[-1] is True


def test_nothing_is_left_on_the_leaves() -> None:
    """They outlive the graph: what hangs there would pile up, and keep the pipeline alive."""
    case, inputs, backward = model(Chain), Inputs.random(0), SplitBackward(None)
    for _ in range(3):
        loss = case(inputs.rows, inputs.dense)
        backward.to_embeddings(Graph(loss), [inputs.rows])
        backward.weight_gradients(lambda: True)
        assert not any(each._backward_hooks for each in case.parameters())
    assert backward._factors == []
