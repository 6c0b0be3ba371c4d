"""Models and a source that fail where a test wants them to."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from workers.job import DataSpec
from workers.models import sequence_ranker
from workers.sources import open_source
from workers.sources.schema import HeldOut, Samples, Schema


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


def diverging(schema: Schema, rank: int, call: int) -> nn.Module:
    """The built-in ranker, whose loss is not a number on `rank` at its head's call number `call`."""
    model = sequence_ranker(schema, embedding_dim=8, hidden=[8])
    made = 0

    def spoil(_: nn.Module, __: object, output: Any) -> Any:
        nonlocal made
        made += 1
        if made != call or dist.get_rank() != rank:
            return None
        loss, (detached, *rest) = output
        return loss * float("nan"), (detached * float("nan"), *rest)

    model.head.register_forward_hook(spoil)
    return model


def source(data: DataSpec) -> "FailingSource":
    """The synthetic source, which on rank `failing_rank` cannot read step `failing_step`."""
    params = dict(data.params)
    return FailingSource(params.pop("failing_rank"), params.pop("failing_step"), params)


class FailingSource:
    """See `source`."""

    def __init__(self, rank: int, step: int, params: dict[str, Any]) -> None:
        self._rank, self._step = rank, step
        self._whole = open_source(DataSpec(source="synthetic", params=params))
        self.schema = self._whole.schema

    def steps(self, world_size: int, batch_size: int, epochs: int) -> int:
        return self._whole.steps(world_size, batch_size, epochs)

    def train_batches(
        self, rank: int, world_size: int, batch_size: int, epochs: int, seed: int, start: int
    ) -> Iterator[Samples]:
        batches = self._whole.train_batches(rank, world_size, batch_size, epochs, seed, start)
        for step, samples in enumerate(batches, start):
            if rank == self._rank and step == self._step:
                raise OSError("disk gone")
            yield samples

    def holdout(self, rank: int, world_size: int, batch_size: int) -> Iterator[HeldOut]:
        return self._whole.holdout(rank, world_size, batch_size)
