"""How a training ends before its data does: after the same step on all ranks, and with one reason for all of them.

A rank that raised alone would leave the others waiting for it in a collective. It hands out no more batches instead,
which the pipeline tells all ranks; they train what they have, and then agree on why it ended.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

import torch.distributed as dist

from workers.sources.bad_rows import UnusableRows

Fact = TypeVar("Fact")


class Cause(IntEnum):
    """What ends a stretch of steps: no more data, a node that is about to go, or whoever tells the job to stop."""

    DATA = 0
    NOTICE = 1
    STOP = 2


class StoppedError(Exception):
    """The job was told to stop. What was trained is saved: a checkpoint after `steps` steps counts."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"stopped after {steps} steps")
        self.steps = steps


class DivergedError(Exception):
    """The loss of `step` is not finite. To start again from a checkpoint would only come to the same end, unless the
    step is left out.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step

    def __reduce__(self) -> tuple[type["DivergedError"], tuple[str, int]]:
        return DivergedError, (str(self), self.step)


class DataFailedError(Exception):
    """A source failed while it was read. Every batch that all ranks had before is trained and saved."""


class UnusableDataError(Exception):
    """The rows of some rank cannot be trained, and starting again would not change that. Everything before is saved."""


class EndedByPeerError(Exception):
    """Another rank has ended the training, and says why itself."""


def any_of_all_ranks(fact: bool) -> bool:
    """Whether it holds on any rank. Every rank calls it."""
    return any(_of_all_ranks(fact))


def strongest_of_all_ranks(cause: Cause) -> Cause:
    """Of what the ranks have heard of, that which goes furthest. Every rank calls it."""
    return max(_of_all_ranks(cause))


def refuse_diverged(diverged_at: int | None, keep_batch: Callable[[int], str]) -> None:
    """Raise `DivergedError`, the same on every rank, if the loss of any step on any rank is not finite.

    `diverged_at` is this rank's first such step. Ranks that were the first keep their batch, at a path that
    `keep_batch` returns. The others have only seen what those made of the weights.
    """
    steps = _of_all_ranks(diverged_at)
    first = min((step for step in steps if step is not None), default=None)
    if first is None:
        return
    kept = _of_all_ranks(_keep(first, keep_batch) if diverged_at == first else None)
    where = [f"rank {rank} ({what})" for rank, what in enumerate(kept) if what is not None]
    raise DivergedError(
        f"the loss of step {first} is not finite on {', '.join(where)}. Look at the batch, or lower training.dense_lr "
        "and training.sparse_optimizer.lr; training.max_skipped_steps leaves such steps out",
        first,
    )


def _keep(step: int, keep_batch: Callable[[int], str]) -> str:
    try:
        return f"batch kept as {keep_batch(step)}"
    except Exception as error:
        # The other ranks wait for this one, and the loss is what ended the training.
        return f"batch not kept: {type(error).__name__}: {error}"


def refuse_failed_data(failure: Exception | None) -> None:
    """Raise if the source of any rank has failed.

    `UnusableDataError`, the same on every rank, if that is due to its rows. Otherwise `DataFailedError` on that rank,
    and `EndedByPeerError` on the others.
    """
    reasons = _of_all_ranks(f"{failure}" if isinstance(failure, UnusableRows) else None)
    unusable = [f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason is not None]
    if unusable:
        raise UnusableDataError("; ".join(unusable)) from failure
    failed = [rank for rank, has_failed in enumerate(_of_all_ranks(failure is not None)) if has_failed]
    if failure is not None:
        raise DataFailedError(f"reading training data: {type(failure).__name__}: {failure}") from failure
    if failed:
        raise EndedByPeerError(f"the data of rank {', '.join(map(str, failed))} failed")


def _of_all_ranks(own: Fact) -> list[Fact]:
    found = [own] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found
