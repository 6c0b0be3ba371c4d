"""Models and a source that fail where a test wants them to."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import nn

from workers.job import DataSpec
from workers.models import sequence_ranker
from workers.sources import open_source
from workers.sources.schema import START, Consumed, HeldOut, Samples, Schema


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


def forgetful(schema: Schema) -> nn.Module:
    """The built-in ranker with dropout, so that its training depends on the random state of each rank."""
    model = sequence_ranker(schema, embedding_dim=8, hidden=[8])
    last = [module for module in model.head.modules() if isinstance(module, nn.Linear)][-1]
    last.register_forward_pre_hook(lambda module, inputs: nn.functional.dropout(inputs[0], training=module.training))
    return model


def source(data: DataSpec) -> "FailingSource":
    """The synthetic source, which on rank `failing_rank` cannot read step `failing_step`."""
    params = dict(data.params)
    return FailingSource(params.pop("failing_rank"), params.pop("failing_step"), params)


def shorter(data: DataSpec) -> "FailingSource":
    """The synthetic source without the batches of step `missing_step`."""
    params = dict(data.params)
    return FailingSource(None, params.pop("missing_step"), params)


def poisoned(data: DataSpec) -> "FailingSource":
    """The synthetic source, whose labels are not numbers in step `poisoned_step` on every rank."""
    params = dict(data.params)
    step = params.pop("poisoned_step")
    whole = FailingSource(-1, step, params)
    whole.spoil = lambda samples: replace(samples, labels=np.full_like(samples.labels, np.nan))
    return whole


class FailingSource:
    """See `source`, `shorter` and `poisoned`."""

    spoil: Callable[[Samples], Samples] | None = None

    def __init__(self, rank: int | None, step: int, params: dict[str, Any]) -> None:
        self._rank, self._step = rank, step
        self._whole = open_source(DataSpec(source="synthetic", params=params))
        self.schema = self._whole.schema

    def steps(self, world_size: int, batch_size: int, epochs: int, start: Consumed = START) -> int:
        return self._whole.steps(world_size, batch_size, epochs, start) - (self._rank is None)

    def train_batches(
        self, rank: int, world_size: int, batch_size: int, epochs: int, seed: int, start: Consumed = START
    ) -> Iterator[Samples]:
        batches = self._whole.train_batches(rank, world_size, batch_size, epochs, seed, start)
        for step, samples in enumerate(batches, start.steps):
            if rank == self._rank and step == self._step:
                raise OSError("disk gone")
            if step == self._step and self.spoil is not None:
                yield self.spoil(samples)
            elif self._rank is not None or step != self._step:
                yield samples

    def holdout(self, rank: int, world_size: int, batch_size: int) -> Iterator[HeldOut]:
        return self._whole.holdout(rank, world_size, batch_size)
