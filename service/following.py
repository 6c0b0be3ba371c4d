"""The events of a job as a client reads them: server-sent events in, typed events out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from service.models import JobState, LatestStep, StateChange

_DELETED = "deleted"


@dataclass(frozen=True)
class JobEnded:
    """Nothing comes any more. `state` is the one in which the job has ended; None: it was deleted."""

    state: JobState | None


JobEvent = StateChange | LatestStep | JobEnded


class NotEventsError(Exception):
    """What came is not what this version of Overlane sends."""


def together(pieces: Iterable[str]) -> Iterator[list[JobEvent]]:
    """The events of a stream, those that came in one piece in one list; a list without any for a heartbeat.

    Events can be cut anywhere between pieces. Raises `NotEventsError`.
    """
    rest = ""
    for piece in pieces:
        *blocks, rest = (rest + piece).split("\n\n")
        if blocks:
            yield [event for block in blocks if (event := _event(block)) is not None]


def _event(block: str) -> JobEvent | None:
    """None for comments, and for kinds of events that a later version may have added."""
    fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":") and ": " in line)
    name, data = fields.get("event"), fields.get("data", "")
    try:
        if name == "state":
            return StateChange.model_validate_json(data)
        if name == "step":
            return LatestStep.model_validate_json(data)
        if name == "end":
            return JobEnded(None if data == _DELETED else JobState(data))
    except (ValidationError, ValueError) as error:
        raise NotEventsError(str(error)) from error
    return None
