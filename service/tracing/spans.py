"""Spans of what the service does: recorded if traces are configured, and nothing otherwise.

Nothing here imports OpenTelemetry, which is loaded only when there is a collector (`start.py`). What a span says is
chosen here and by its callers: never a header, a query, a body, a statement, or the message of an error.
"""

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from structlog.typing import EventDict, WrappedLogger


class Kind(Enum):
    """Which side of a call a span is, in OpenTelemetry's words."""

    SERVER = "SERVER"
    CLIENT = "CLIENT"
    INTERNAL = "INTERNAL"


class Span(Protocol):
    """A span that goes on."""

    def rename(self, name: str) -> None:
        """Call it so from now on."""

    def note(self, name: str, value: str | int) -> None:
        """Give it an attribute."""

    def fail(self, why: str) -> None:
        """Mark it as failed; a word, and never the message of an error."""


class Recorder(Protocol):
    """What records spans."""

    def span(
        self, name: str, kind: Kind, parent: str | None = None, begin: datetime | None = None
    ) -> AbstractContextManager[Span]:
        """A span around the block, within the current one, or else within that of the header `parent`."""

    def traceparent(self) -> str | None:
        """The current span as a `traceparent` header; None without one."""


class Traced(Protocol):
    """A job whose steps belong to the trace of its submission."""

    @property
    def id(self) -> str: ...

    @property
    def submitted_at(self) -> datetime: ...

    @property
    def started_at(self) -> datetime | None: ...

    @property
    def traceparent(self) -> str | None: ...


class _NoSpan:
    def rename(self, name: str) -> None: ...

    def note(self, name: str, value: str | int) -> None: ...

    def fail(self, why: str) -> None: ...


_NO_SPAN: AbstractContextManager[Span] = nullcontext(_NoSpan())
_recorder: Recorder | None = None


def record_with(recorder: Recorder | None) -> None:
    """Record spans from now on; None: record none."""
    global _recorder
    _recorder = recorder


def recording() -> bool:
    return _recorder is not None


def request(name: str, parent: str | None) -> AbstractContextManager[Span]:
    """The span of a request that carries the header `parent`."""
    return _NO_SPAN if _recorder is None else _recorder.span(name, Kind.SERVER, parent)


def within(name: str, kind: Kind = Kind.INTERNAL) -> AbstractContextManager[Span]:
    """A part of the current span. Without one nothing: what is done all the time for nobody has no trace."""
    if _recorder is None or _recorder.traceparent() is None:
        return _NO_SPAN
    return _recorder.span(name, kind)


def traceparent() -> str | None:
    """The current span as a `traceparent` header; None without one."""
    return None if _recorder is None else _recorder.traceparent()


_Self = TypeVar("_Self")
_Job = TypeVar("_Job", bound=Traced)
_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")
_Step = Callable[Concatenate[_Self, _Job, _Rest], Coroutine[Any, Any, _Result]]


def step_of_job(
    name: str, begin: Callable[[Traced], datetime | None] = lambda _job: None
) -> Callable[[_Step[_Self, _Job, _Rest, _Result]], _Step[_Self, _Job, _Rest, _Result]]:
    """Let a method be a span in the trace of the submission of its job, from `begin` on if that is known."""

    def around(step: _Step[_Self, _Job, _Rest, _Result]) -> _Step[_Self, _Job, _Rest, _Result]:
        @wraps(step)
        async def traced(self: _Self, job: _Job, /, *args: _Rest.args, **options: _Rest.kwargs) -> _Result:
            if _recorder is None:
                return await step(self, job, *args, **options)
            with _recorder.span(name, Kind.INTERNAL, job.traceparent, begin(job)) as span:
                span.note("overlane.job_id", job.id)
                return await step(self, job, *args, **options)

        return traced

    return around


def with_trace_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Structlog's processor that adds `trace_id` to what is logged within a span."""
    if (current := traceparent()) is not None:
        event["trace_id"] = current.split("-")[1]
    return event
