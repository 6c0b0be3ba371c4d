"""How the ids of one batch travel between trainers and owners, and how they are parted into OL and NOL.

Every rank is both: as trainer it wants rows for its samples, as owner it holds a shard of each table. Three orders:
  trainer order  the order of the embeddings that the model sees, `[num_trainer_ids]`
  wire order     grouped by peer, as an AllToAll moves it; the same sequence on both ends
  owner order    feature by feature, as the table lookup wants it, `[num_owner_ids]`
A `Part` is one end of a transfer: a wire index into that end's own order, and how many ids
go to or come from each peer. Embeddings go from owner to trainer, gradients back over the same two ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from pipeline.report import Partition

_BUCKETS_PER_ROW = 8


class ShardingContext(Protocol):
    """What TorchRec's input dist leaves behind about its transfer (its `SequenceShardingContext`)."""

    input_splits: list[int]
    output_splits: list[int]
    sparse_features_recat: Tensor | None
    unbucketize_permute_tensor: Tensor | None


@dataclass(frozen=True)
class Part:
    """One end of a transfer.

    `index[i]` is the place, in this end's own order, of the i-th id on the wire, `[num_ids]`; `splits[r]` is how many
    of them belong to peer r, in peer order.
    """

    index: Tensor
    splits: list[int]


@dataclass(frozen=True)
class OwnerPart:
    """The owner's end: its `features` are the part's ids in owner order, and `part` indexes into them."""

    part: Part
    features: KeyedJaggedTensor


@dataclass(frozen=True)
class Exchange:
    """All ids of one batch of one sharding group, before they are parted.

    `rows` are the owner's ids made unique across the group's tables, `[num_owner_ids]`.
    """

    owner: OwnerPart
    trainer: Part
    rows: Tensor

    @classmethod
    def of(cls, context: ShardingContext, features: KeyedJaggedTensor, first_rows: Sequence[int]) -> "Exchange":
        """Read the transfer from what TorchRec's input dist left behind.

        `first_rows[f]` is the offset of feature f's table among the group's local rows.
        """
        device = features.values().device
        trainer_ids = sum(context.input_splits)
        if context.unbucketize_permute_tensor is None:
            trainer_index = torch.arange(trainer_ids, device=device)
        else:
            trainer_index = invert(context.unbucketize_permute_tensor)
        owner = Part(_owner_index(context.sparse_features_recat, features), list(context.output_splits))
        offsets = torch.tensor(first_rows, dtype=torch.int64, device=device)
        per_feature = torch.tensor(features.length_per_key(), dtype=torch.int64, device=device)
        rows = features.values().long() + torch.repeat_interleave(offsets, per_feature)
        return cls(OwnerPart(owner, features), Part(trainer_index, list(context.input_splits)), rows)


@dataclass(frozen=True)
class OwnerSplit:
    """The owner's ends of a batch parted by `mask`, `[num_owner_ids]` in owner order: True where the row is OL."""

    mask: Tensor
    ol: OwnerPart
    nol: OwnerPart

    def part(self, partition: Partition) -> OwnerPart:
        return self.ol if partition is Partition.OL else self.nol

    @classmethod
    def of(cls, exchange: Exchange, mask: Tensor) -> "OwnerSplit":
        whole = exchange.owner
        wire_mask = mask[whole.part.index]
        ol, nol = _partition(wire_mask, whole.part.splits)
        rank_in_part = torch.where(mask, mask.cumsum(0), (~mask).cumsum(0)) - 1
        in_part = rank_in_part[whole.part.index]
        return cls(
            mask,
            OwnerPart(Part(in_part[ol.index], ol.splits), select(whole.features, mask)),
            OwnerPart(Part(in_part[nol.index], nol.splits), select(whole.features, ~mask)),
        )


@dataclass(frozen=True)
class TrainerSplit:
    """The trainer's ends of a parted batch. Both index into the whole batch in trainer order."""

    ol: Part
    nol: Part

    def part(self, partition: Partition) -> Part:
        return self.ol if partition is Partition.OL else self.nol

    @classmethod
    def of(cls, exchange: Exchange, wire_mask: Tensor) -> "TrainerSplit":
        """`wire_mask` is the owners' mask as it arrived, `[num_trainer_ids]` in wire order."""
        ol, nol = _partition(wire_mask, exchange.trainer.splits)
        index = exchange.trainer.index
        return cls(Part(index[ol.index], ol.splits), Part(index[nol.index], nol.splits))


def common_rows(rows: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
    """Which of `rows` stand in `previous` and the reverse: two bool masks. Memory grows with the batches only."""
    return _members(rows, previous), _members(previous, rows)


def _members(rows: Tensor, others: Tensor) -> Tensor:
    """Which of `rows` stand in `others`, as `torch.isin` has it, several times faster on CPU: no sorting.

    Each bucket keeps one of the rows that fall into it. A row that its bucket does not keep can only be among those
    that were displaced, and these are few.
    """
    if rows.device.type != "cpu":
        # To pick out the displaced ones, the host would have to wait for the device.
        return torch.isin(rows, others)
    buckets = 1 << (_BUCKETS_PER_ROW * others.numel()).bit_length()
    kept = torch.full((buckets,), -1)
    places = others & (buckets - 1)
    kept[places] = others
    seen = kept[rows & (buckets - 1)]
    found = seen == rows
    displaced = others[kept[places] != others]
    if displaced.numel():
        unsure = (~found & (seen >= 0)).nonzero().view(-1)
        found[unsure] = torch.isin(rows[unsure], displaced)
    return found


def select(features: KeyedJaggedTensor, mask: Tensor) -> KeyedJaggedTensor:
    """The ids of `features` where `mask` is True, `[num_ids]`, with the same keys and samples."""
    kept = torch.zeros(mask.numel() + 1, dtype=torch.int64, device=mask.device)
    torch.cumsum(mask, 0, out=kept[1:])
    at_bounds = kept[features.offsets().long()]
    lengths = (at_bounds[1:] - at_bounds[:-1]).to(features.lengths().dtype)
    return KeyedJaggedTensor(
        keys=features.keys(), values=features.values()[mask], lengths=lengths, stride=features.stride()
    )


def invert(permutation: Tensor) -> Tensor:
    """The inverse of a permutation, `[n]`, as int64."""
    inverse = torch.empty(permutation.numel(), dtype=torch.int64, device=permutation.device)
    inverse[permutation.long()] = torch.arange(permutation.numel(), device=permutation.device)
    return inverse


def _owner_index(recat: Tensor | None, features: KeyedJaggedTensor) -> Tensor:
    """Owner-order place of each id on the wire. TorchRec's `recat` brought whole (feature, rank) blocks into owner
    order; its inverse, carried out on the places, brings them back. With unequal batch sizes `recat` counts samples.
    """
    places = torch.arange(features.values().numel(), device=features.values().device)
    if recat is None or places.numel() == 0:
        return places
    lengths, back = features.lengths(), invert(recat).int()
    if recat.numel() == lengths.numel():
        _, places, _ = torch.ops.fbgemm.permute_1D_sparse_data(back, lengths, places, None, places.numel())
    else:
        blocks = lengths.view(recat.numel(), -1)
        _, places, _ = torch.ops.fbgemm.permute_2D_sparse_data(back, blocks, places, None, places.numel())
    return cast(Tensor, places)


def _partition(wire_mask: Tensor, splits: list[int]) -> tuple[Part, Part]:
    ends = torch.tensor(splits, dtype=torch.int64, device=wire_mask.device).cumsum(0)
    counted = torch.zeros(wire_mask.numel() + 1, dtype=torch.int64, device=wire_mask.device)
    torch.cumsum(wire_mask, 0, out=counted[1:])
    ol = torch.diff(counted[ends], prepend=counted[:1]).tolist()
    nol = [total - part for total, part in zip(splits, ol, strict=True)]
    return Part(wire_mask.nonzero().view(-1), ol), Part((~wire_mask).nonzero().view(-1), nol)
