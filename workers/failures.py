"""What a failed run tells its user."""

import re
import traceback
from collections.abc import Mapping
from typing import Self

from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

from workers.reports import JobFailure

# In what Ray writes about an actor, and about a worker of a group.
_NODE = re.compile(r"(?:^\s*ip: |node_ip=')([^\s']+)", re.MULTILINE)
_DEATH = re.compile(r"The actor (?:is dead|died) because [^.\n]+\.")


class RankError(Exception):
    """A rank failed: which, on which node, at what, and why. Travels to the driver whatever the cause is made of."""

    def __init__(self, message: str, where: str, stack: str, lost_a_peer: bool) -> None:
        super().__init__(message)
        self.where = where
        self.stack = stack
        self.lost_a_peer = lost_a_peer

    def __reduce__(self) -> tuple[type["RankError"], tuple[str, str, str, bool]]:
        return RankError, (str(self), self.where, self.stack, self.lost_a_peer)

    @classmethod
    def of(cls, cause: BaseException, rank: int, node: str, where: str, stack: str | None = None) -> Self:
        """What `cause` ended on this rank, while it was at `where`."""
        message = f"rank {rank} on node {node}, at {where}: {_one_line(cause)}"
        stack = stack or "".join(traceback.format_exception(cause))
        return cls(message, where, stack, _lost_a_peer(cause))


def describe(error: TrainingFailedError) -> JobFailure:
    """Name the rank that failed first and what went wrong there, with its traceback."""
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    if not failures:
        cause = getattr(error, "controller_failure", error)
        return JobFailure(message=_one_line(cause), traceback="".join(traceback.format_exception(error)))
    # When one rank ends, the others lose their connection to it: name the one that ended first.
    first = min(failures, key=lambda rank: (_lost_a_peer(failures[rank]), rank))
    others = sorted(set(failures) - {first})
    also = f" (also failed: rank {', '.join(map(str, others))})" if others else ""
    found = failures[first]
    if isinstance(found, RankError):
        return JobFailure(message=f"{found}{also}", traceback=found.stack)
    return JobFailure(message=f"{_named(first, found)}{also}{_witnessed(failures, others)}", traceback=str(error))


def _named(rank: int, error: Exception) -> str:
    """What Ray says about a rank that could say nothing itself: its node, and in one line what became of it."""
    said = str(error)
    node = _NODE.search(said)
    death = _DEATH.search(said)
    what = f"{type(error).__name__}: {death[0]}" if death else _one_line(error)
    return f"rank {rank}{f' on node {node[1]}' if node else ''}: {what}"


def _witnessed(failures: Mapping[int, Exception], others: list[int]) -> str:
    """At what a rank ended that could say nothing itself: those that waited for it know."""
    told = ((rank, failures[rank]) for rank in others)
    return next(
        (f"; rank {rank} was at {error.where} then" for rank, error in told if isinstance(error, RankError)), ""
    )


def _lost_a_peer(error: BaseException) -> bool:
    if isinstance(error, RankError):
        return error.lost_a_peer
    kinds = ("DistBackendError", "DistNetworkError", "EndedByPeerError")
    return "gloo" in str(error) or type(error).__name__ in kinds


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
