"""Parting a batch into OL and NOL and back, on three ranks worked out in one process."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from pipeline import masks
from pipeline.exchange import Exchange, OwnerPart, OwnerSplit, Part, TrainerSplit, common_rows, invert, select


def test_ids_are_selected_sample_by_sample() -> None:
    features = KeyedJaggedTensor(
        keys=["a", "b"], values=torch.tensor([7, 8, 9, 1, 2]), lengths=torch.tensor([2, 0, 1, 1, 0, 1])
    )
    kept = select(features, torch.tensor([True, False, True, False, True]))
    assert kept.values().tolist() == [7, 9, 2]
    assert kept.lengths().tolist() == [1, 0, 1, 0, 0, 1]
    assert (kept.keys(), kept.stride()) == (["a", "b"], 3)


def test_common_rows_both_ways() -> None:
    mask, previous = common_rows(torch.tensor([1, 2, 2, 5]), torch.tensor([5, 9, 2]))
    assert mask.tolist() == [False, True, True, True]
    assert previous.tolist() == [True, False, True]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_common_rows_are_those_that_stand_in_both(data: st.DataObject) -> None:
    """Multiples of a power of two fall into few buckets, so that rows displace each other."""
    spread = data.draw(st.sampled_from([1, 64, 4096, 2**33]))
    ids = st.lists(st.integers(0, 40).map(lambda place: place * spread), max_size=60)
    rows, previous = (torch.tensor(data.draw(ids), dtype=torch.int64) for _ in range(2))
    mask, earlier = common_rows(rows, previous)
    assert mask.tolist() == [row in previous.tolist() for row in rows.tolist()]
    assert earlier.tolist() == [row in rows.tolist() for row in previous.tolist()]


def test_inverse_of_a_permutation() -> None:
    permutation = torch.tensor([2, 0, 1], dtype=torch.int32)
    assert invert(permutation)[permutation.long()].tolist() == [0, 1, 2]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_both_ends_of_a_parted_transfer_agree(data: st.DataObject) -> None:
    """Every embedding that owners send in two parts lands in the place that the whole transfer would give it."""
    world = 3
    counts = data.draw(st.lists(st.lists(st.integers(0, 4), min_size=world, max_size=world), min_size=3, max_size=3))
    owners, trainers = _whole_ends(counts, data.draw(st.integers(0, 10_000)))
    generator = torch.Generator().manual_seed(0)
    found = [torch.rand(sum(row), generator=generator) < 0.5 for row in counts]
    splits = [OwnerSplit.of(owner, mask) for owner, mask in zip(owners, found, strict=True)]
    wire_masks = [mask[owner.owner.part.index] for owner, mask in zip(owners, found, strict=True)]
    for rank, trainer in enumerate(trainers):
        arrived = torch.cat([_piece(wire_masks[peer], counts[peer], rank) for peer in range(world)])
        mine = TrainerSplit.of(trainer, arrived)
        placed = torch.full((int(trainer.trainer.index.numel()),), -1)
        for which in ("ol", "nol"):
            end: Part = getattr(mine, which)
            sent = []
            for peer, split in enumerate(splits):
                owner_end: OwnerPart = getattr(split, which)
                values = owner_end.features.values()[owner_end.part.index]
                sent.append(_piece(values, owner_end.part.splits, rank))
                assert owner_end.part.splits[rank] == end.splits[peer]
            placed[end.index] = torch.cat(sent)
        whole = [
            _piece(owner.owner.features.values()[owner.owner.part.index], counts[peer], rank)
            for peer, owner in enumerate(owners)
        ]
        expected = torch.empty_like(placed)
        expected[trainer.trainer.index] = torch.cat(whole)
        assert torch.equal(placed, expected)


def _whole_ends(counts: list[list[int]], seed: int) -> tuple[list[Exchange], list[Exchange]]:
    """`counts[owner][trainer]` ids, in owner and trainer orders shuffled by the seed. Only one half of each is used."""
    generator = torch.Generator().manual_seed(seed)
    empty = Part(torch.empty(0, dtype=torch.int64), [0] * len(counts))
    nothing = KeyedJaggedTensor(keys=["f"], values=torch.empty(0, dtype=torch.int64), lengths=torch.tensor([0]))
    owners, trainers = [], []
    for rank, row in enumerate(counts):
        total = sum(row)
        values = torch.arange(total) + 100 * rank
        features = KeyedJaggedTensor(keys=["f"], values=values, lengths=torch.tensor([total]))
        part = Part(torch.randperm(total, generator=generator), row)
        owners.append(Exchange(OwnerPart(part, features), empty, values))
    for rank in range(len(counts)):
        column = [row[rank] for row in counts]
        part = Part(torch.randperm(sum(column), generator=generator), column)
        trainers.append(Exchange(OwnerPart(empty, nothing), part, torch.empty(0)))
    return owners, trainers


def _piece(wire: Tensor, splits: list[int], peer: int) -> Tensor:
    ends = list(itertools.accumulate(splits, initial=0))
    return wire[ends[peer] : ends[peer + 1]]


@pytest.mark.parametrize("sizes", [[[2, 1], [0, 3]], [[0, 0], [0, 0]], [[1, 2]], [[9, 16], [8, 3], [7, 0]]])
def test_masks_travel_together(sizes: list[list[int]]) -> None:
    """Two ranks that send each other the same shapes: what one packs for peer r is what it unpacks from peer r."""
    generator = torch.Generator().manual_seed(1)
    bits = [torch.rand(sum(size), generator=generator) < 0.5 for size in sizes]
    packed, send_splits = masks.pack(bits, sizes)
    assert send_splits == masks.sizes(sizes)
    assert packed.dtype == torch.uint8
    assert [each.tolist() for each in masks.unpack(packed, sizes)] == [each.tolist() for each in bits]
