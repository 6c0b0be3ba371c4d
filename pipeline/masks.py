"""All overlap masks of a step in one AllToAll: packing on the owner, unpacking on the trainer."""

import torch
from torch import Tensor


def pack(masks: list[Tensor], splits: list[list[int]]) -> tuple[Tensor, list[int]]:
    """Interleave several bool masks in wire order so that each peer's share is contiguous.

    `splits[m][r]` is how much of mask m belongs to peer r. Returns the bytes to send and how many go to each peer.
    """
    pieces = [torch.split(mask.view(torch.uint8), split) for mask, split in zip(masks, splits, strict=True)]
    by_peer = [piece for peer in zip(*pieces, strict=True) for piece in peer]
    return torch.cat(by_peer), sizes(splits)


def unpack(received: Tensor, splits: list[list[int]]) -> list[Tensor]:
    """The masks back, each in its own wire order, from what the peers sent; `splits` as the trainer knows them."""
    by_peer = torch.split(received, [size for peer in zip(*splits, strict=True) for size in peer])
    return [torch.cat(by_peer[place :: len(splits)]).view(torch.bool) for place in range(len(splits))]


def sizes(splits: list[list[int]]) -> list[int]:
    """How many bytes each peer's share has, all masks together."""
    return [sum(peer) for peer in zip(*splits, strict=True)]
