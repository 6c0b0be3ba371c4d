"""The Chrome trace event format, as far as traces use it; ui.perfetto.dev and chrome://tracing open it."""

from typing import Annotated, Literal

from pydantic import Field

from service.models import Answer, Moment

Figures = dict[str, int | float | str | None]


class Slice(Answer):
    """Something that began at `ts` and took `dur`, both in whole microseconds, on lane `tid` of process `pid`.

    `args` are figures that the viewer shows beside it; names are those of a step report, with its units.
    """

    ph: Literal["X"] = "X"
    name: str
    cat: str
    pid: int
    tid: int
    ts: int
    dur: int
    args: Figures


class Counter(Answer):
    """The value that a figure has from `ts` (microseconds) on."""

    ph: Literal["C"] = "C"
    name: str
    pid: int
    ts: int
    args: dict[str, float]


class Label(Answer):
    """What the viewer calls a process or a lane, and where it puts it."""

    ph: Literal["M"] = "M"
    name: Literal["process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"]
    pid: int
    tid: int = 0
    args: dict[str, int | str]


TraceEvent = Annotated[Slice | Counter | Label, Field(discriminator="ph")]


class TraceNotes(Answer):
    """What to know when reading the trace.

    `begins_at` is the moment of `ts` 0. The clocks of ranks agree to within `clock_uncertainty_ms`; null if not all of
    them are known.
    """

    job_id: str
    first_step: int | None
    last_step: int | None
    ranks: int
    begins_at: Moment | None
    clock_uncertainty_ms: float | None
    placement: str
    clocks: str


class Trace(Answer):
    """A trace in the format's object form."""

    traceEvents: list[TraceEvent]  # noqa: N815 - the format's word for it
    displayTimeUnit: Literal["ms"] = "ms"  # noqa: N815
    otherData: TraceNotes  # noqa: N815
