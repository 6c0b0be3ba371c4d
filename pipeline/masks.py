"""All overlap masks of a step in one AllToAll, one bit for each id: packing on the owner, unpacking on the trainer."""

import torch
from torch import Tensor
from torch.nn.functional import pad

BITS = 8


def pack(masks: list[Tensor], splits: list[list[int]]) -> tuple[Tensor, list[int]]:
    """Several bool masks in wire order as bits, each peer's share contiguous and filled up to whole bytes.

    `splits[m][r]` is how much of mask m belongs to peer r. Returns the bytes to send and how many go to each peer.
    """
    pieces = [torch.split(mask, split) for mask, split in zip(masks, splits, strict=True)]
    shares = [torch.cat(peer) for peer in zip(*pieces, strict=True)]
    bits = torch.cat([pad(share, (0, -share.numel() % BITS)) for share in shares]).view(-1, BITS)
    weights = 1 << torch.arange(BITS, dtype=torch.uint8, device=bits.device)
    return (bits * weights).sum(1, dtype=torch.uint8), sizes(splits)


def unpack(received: Tensor, splits: list[list[int]]) -> list[Tensor]:
    """The masks back, each in its own wire order, from what the peers sent; `splits` as the trainer knows them."""
    places = torch.arange(BITS, dtype=torch.uint8, device=received.device)
    bits = (received.unsqueeze(1) >> places).bitwise_and_(1).view(torch.bool).view(-1)
    shares = torch.split(bits, [size * BITS for size in sizes(splits)])
    by_peer = [
        piece
        for share, wanted in zip(shares, zip(*splits, strict=True), strict=True)
        for piece in torch.split(share[: sum(wanted)], list(wanted))
    ]
    return [torch.cat(by_peer[place :: len(splits)]) for place in range(len(splits))]


def sizes(splits: list[list[int]]) -> list[int]:
    """How many bytes each peer's share has, all masks together."""
    return [-(-sum(peer) // BITS) for peer in zip(*splits, strict=True)]
