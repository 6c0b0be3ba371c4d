"""What a failed run tells its user."""

import traceback

from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

from workers.reports import JobFailure


def describe(error: TrainingFailedError) -> JobFailure:
    """Name the ranks and what went wrong there, with the remote traceback."""
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    if not failures:
        cause = getattr(error, "controller_failure", error)
        return JobFailure(message=_one_line(cause), traceback="".join(traceback.format_exception(error)))
    # When one rank ends, the others lose their connection to it: name the one that ended first.
    first = min(failures, key=lambda rank: (_lost_a_peer(failures[rank]), rank))
    others = sorted(set(failures) - {first})
    also = f" (also failed: rank {', '.join(map(str, others))})" if others else ""
    return JobFailure(message=f"rank {first}: {_one_line(failures[first])}{also}", traceback=str(error))


def _lost_a_peer(error: Exception) -> bool:
    kinds = ("DistBackendError", "DistNetworkError", "EndedByPeerError")
    return "gloo" in str(error) or type(error).__name__ in kinds


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
