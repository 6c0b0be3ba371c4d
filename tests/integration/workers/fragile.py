"""A model that fails where a test wants it to."""

import os
from pathlib import Path

import torch.distributed as dist
from torch import nn

from workers.models import sequence_ranker
from workers.sources.schema import Schema


def ranker(schema: Schema, marker: str, rank: int, calls: int) -> nn.Module:
    """The built-in ranker, whose head fails on `rank` at its call number `calls`, unless the file `marker` exists.

    The failure creates the file, so that the next attempt is a good one.
    """
    model = sequence_ranker(schema, embedding_dim=8, hidden=[8])
    made = 0

    def fail_once(*_: object) -> None:
        nonlocal made
        made += 1
        if made == calls and dist.get_rank() == rank and not os.path.exists(marker):
            Path(marker).touch()
            raise ArithmeticError("the head is upset")

    model.head.register_forward_pre_hook(fail_once)
    return model
