"""The CPU kernel of index dedup against a slow reference, and when it is registered."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.dedup import jagged_unique_indices, register_cpu_kernel


@dataclass(frozen=True)
class Input:
    """Tables with `rows[t]` rows and the ids `ids[t][f][b]` of their features; all features have `samples` samples."""

    rows: tuple[int, ...]
    ids: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]
    samples: int

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arguments as TorchRec's EmbeddingCollection makes them."""
        sizes: list[int] = []
        counts: list[int] = []
        for rows, features in zip(self.rows, self.ids, strict=True):
            sizes += [*[0] * (len(features) - 1), rows]
            counts += [len(features), *[0] * (len(features) - 1)]
        samples = [sample for features in self.ids for feature in features for sample in feature]
        return (
            _cumsum(sizes),
            _cumsum(counts),
            _cumsum([len(sample) for sample in samples]),
            torch.tensor([each for sample in samples for each in sample], dtype=torch.int64),
        )


def _cumsum(sizes: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(sizes)], dtype=torch.int64)


def slowly(cumsum: Tensor, offsets: Tensor, indices: Tensor) -> tuple[list[int], list[int], list[int]]:
    """Lengths, distinct ids and reverse indices, by numbering the rows of all tables and sorting them.

    Features that begin at the same row share a table.
    """
    features = cumsum.numel() - 1
    samples = (offsets.numel() - 1) // features
    first_rows = cumsum[:-1].tolist()
    numbered = [
        (first_rows[slot // samples], identifier)
        for slot in range(features * samples)
        for identifier in indices[int(offsets[slot]) : int(offsets[slot + 1])].tolist()
    ]
    distinct = sorted(set(numbered))
    lengths: list[int] = []
    for first in sorted(set(first_rows)):
        slots = first_rows.count(first) * samples
        mine = [0] * slots
        for number in range(sum(owner == first for owner, _ in distinct)):
            mine[number % slots] += 1
        lengths += mine
    place = {row: number for number, row in enumerate(distinct)}
    return lengths, [identifier for _, identifier in distinct], [place[row] for row in numbered]


@st.composite
def inputs(draw: st.DrawFn) -> Input:
    samples = draw(st.integers(0, 4))
    rows = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    features = [draw(st.integers(1, 3)) for _ in rows]
    ids = tuple(
        tuple(
            tuple(tuple(draw(st.lists(st.integers(0, size - 1), max_size=4))) for _ in range(samples))
            for _ in range(count)
        )
        for size, count in zip(rows, features, strict=True)
    )
    return Input(rows, ids, samples)


@given(inputs())
@example(Input((5,), ((((),),),), 1))
@example(Input((5, 3), ((((4, 4, 0), (4,)), ((), ())), (((2, 2), (2,)),)), 2))
@example(Input((5, 5), ((((), ()),), (((1,), (1, 0)),)), 2))
@example(Input((2**40, 2**40), ((((2**40 - 1, 0),),), (((0, 2**40 - 1),),)), 1))
@settings(max_examples=300, deadline=None)
def test_the_kernel_does_what_the_reference_does(given_input: Input) -> None:
    cumsum, bounds, offsets, indices = given_input.tensors()
    lengths, unique_offsets, distinct, reverse = jagged_unique_indices(cumsum, bounds, offsets, indices)
    expected_lengths, expected_distinct, expected_reverse = slowly(cumsum, offsets, indices)
    assert lengths.tolist() == expected_lengths
    assert unique_offsets.tolist() == [0, *accumulate(expected_lengths)]
    assert distinct.tolist() == expected_distinct
    assert reverse.tolist() == expected_reverse
    assert torch.equal(distinct[reverse], indices)
    assert {each.dtype for each in (lengths, unique_offsets, distinct, reverse)} == {torch.int64}


def test_bounds_may_repeat_a_table_for_each_of_its_features() -> None:
    """As TorchRec's managed collision modules spell it: `[0, 0, 2, 3]` for tables of two features and of one."""
    cumsum, bounds, offsets, indices = Input((5, 3), ((((4, 0),), ((4,),)), (((2, 2),),)), 1).tensors()
    assert bounds.tolist() == [0, 2, 2, 3]
    other = torch.tensor([0, 0, 2, 3])
    one, two = (jagged_unique_indices(cumsum, each, offsets, indices) for each in (bounds, other))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, two, strict=True))


def test_ids_beyond_a_table_stay_apart_from_those_of_the_next_table() -> None:
    cumsum, bounds, offsets, _ = Input((5, 3), ((((0, 1),),), (((0, 1),),)), 1).tensors()
    _, _, distinct, reverse = jagged_unique_indices(cumsum, bounds, offsets, torch.tensor([5, 6, 0, 1]))
    assert distinct.tolist() == [5, 6, 0, 1]
    assert reverse.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("bounds", "offsets"),
    [([0, 1, 2], [0, 1, 1, 1]), ([0, 1, 1], [0, 1, 1]), ([1, 1, 2], [0, 1, 1])],
)
def test_shapes_that_do_not_fit_are_refused(bounds: list[int], offsets: list[int]) -> None:
    cumsum = torch.tensor([0, 5, 8])
    with pytest.raises(ValueError, match="do not describe the same features"):
        jagged_unique_indices(cumsum, torch.tensor(bounds), torch.tensor(offsets), torch.tensor([0]))


def test_the_operator_takes_cpu_tensors_once_the_kernel_is_registered() -> None:
    arguments = Input((5, 3), ((((4, 4, 0), (4,)), ((), ())), (((2, 2), (2,)),)), 2).tensors()
    register_cpu_kernel()
    register_cpu_kernel()
    found = torch.ops.fbgemm.jagged_unique_indices(*arguments)
    for one, other in zip(found, jagged_unique_indices(*arguments), strict=True):
        assert torch.equal(one, other)


FRESH = """
import torch
from pipeline import sharders
from pipeline.dedup import OPERATOR

def known(key):
    return torch._C._dispatch_has_kernel_for_dispatch_key(OPERATOR, key)

cuda = known("CUDA")
sharders()
assert not known("CPU"), "registered although nobody asked for dedup"
sharders(use_index_dedup=True)
assert known("CPU")
assert known("CUDA") == cuda
"""

TAKEN = """
import torch
from pipeline import sharders
from pipeline.dedup import OPERATOR

torch.library.impl(OPERATOR, "CPU", lambda cumsum, bounds, offsets, indices: (indices, indices, indices, indices))
sharders(use_index_dedup=True)
ids = torch.arange(3)
assert torch.ops.fbgemm.jagged_unique_indices(ids, ids, ids, ids)[0].tolist() == [0, 1, 2], "replaced"
"""


@pytest.mark.parametrize("script", [FRESH, TAKEN], ids=["only when asked for", "only where there is none"])
def test_the_kernel_is_registered(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
