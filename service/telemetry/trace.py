"""The steps of a job as a trace: a process for each rank, with lanes for steps, compute and each kind of collective.

When a step began and ended is known, on one clock for all ranks. Of compute and of each kind of collective it is known
how long they took in a step, and how long of that was exposed, not when. So each lane shows true lengths, drawn from
the beginning of the step; the exposed part of a collective stands at its end, since a wait ends with what it waits for.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from service.problems import FieldError, Problem, ProblemType
from service.store.jobs import JobRecord
from service.store.packing import NAMES, PARTITIONS
from service.store.steps import StepStore
from service.telemetry.chrome import Counter, Figures, Label, Slice, Trace, TraceEvent, TraceNotes
from service.telemetry.reports import Telemetry
from workers.reports import StepSample

NEWEST_STEPS = 50
MAX_SAMPLES = 10_000
STEPS_PATTERN = r"^[0-9]{1,15}(-[0-9]{1,15})?$"

_PLACEMENT = (
    "Begin and end of a step are measured. Within a step the lengths of compute, of each kind of collective and of "
    "their exposed parts are measured, their places are not: each is drawn from the beginning of the step, its "
    "exposed part at its end. Flights of the same kind are one slice."
)
_CLOCKS_AGREE = "The times of all ranks stand on the clock of the job's monitor."
_CLOCKS_DIFFER = "Ranks whose clock was not measured yet stand on their own clock; their process says so."

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEPS_LANE, _COMPUTE_LANE, _FIRST_COLLECTIVE_LANE = 1, 2, 3
# Lanes are numbered apart for each rank, since some viewers take equal numbers for the same lane.
_LANES_PER_RANK = 100
_KINDS = [(name, partition) for name in NAMES for partition in PARTITIONS]

Kind = tuple[str, str | None]


@dataclass(frozen=True)
class StepRange:
    """The steps from `first` to `last`, both included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `7` or `7-19`. Raises `Problem`."""
        if not re.fullmatch(STEPS_PATTERN, text):
            raise _refused(f"a step such as 120, or a range such as 120-160 (got {text!r})")
        first, _, last = text.partition("-")
        steps = cls(int(first), int(last or first))
        if steps.last < steps.first:
            raise _refused(f"a range ends after it begins (got {text!r})")
        return steps


class Tracer:
    """Makes traces of stored steps."""

    def __init__(self, steps: StepStore, telemetry: Telemetry) -> None:
        self._steps, self._telemetry = steps, telemetry

    async def samples(self, record: JobRecord, steps: StepRange | None) -> list[StepSample]:
        """What is stored of these steps, by default of the newest ones up to the last that all ranks have reported.

        Raises `Problem` if that is more than a trace can hold.
        """
        if steps is None:
            latest = await self._telemetry.latest(record)
            if latest is None:
                return []
            steps = StepRange(max(0, latest.step - NEWEST_STEPS + 1), latest.step)
        found = await self._steps.page(record.id, steps.first - 1, steps.last, None, MAX_SAMPLES)
        if found and await self._steps.page(record.id, found[-1].step, steps.last, None, 1):
            fits = f"{steps.first}-{found[-1].step}"
            raise _refused(f"a trace holds {MAX_SAMPLES} rank-steps; ask for fewer steps, such as {fits}")
        return found


def trace_of(job_id: str, samples: Sequence[StepSample]) -> Trace:
    """The trace of samples that are in the order of their steps."""
    begin_us = min((_end_us(sample) - _us(sample.step_ms) for sample in samples), default=0)
    used = {(part.name.value, _partition(part.partition)) for sample in samples for part in sample.collectives}
    kinds = [kind for kind in _KINDS if kind in used]
    ranks = sorted({sample.rank for sample in samples})
    events: list[TraceEvent] = []
    for rank in ranks:
        own = [sample for sample in samples if sample.rank == rank]
        events += _labels(rank, kinds, aligned=_aligned(own))
        free_us = 0
        for sample in own:
            # Clocks are measured again and again, so a step can seem to begin before the one before has ended.
            end_us = max(free_us, _end_us(sample) - begin_us)
            start_us = min(end_us, max(free_us, _end_us(sample) - _us(sample.step_ms) - begin_us))
            events += _step(sample, kinds, start_us, end_us)
            free_us = end_us
    return Trace(traceEvents=events, otherData=_notes(job_id, samples, len(ranks), begin_us))


def _labels(rank: int, kinds: Sequence[Kind], *, aligned: bool) -> Iterator[Label]:
    pid = _pid(rank)
    yield Label(name="process_name", pid=pid, args={"name": f"rank {rank}"})
    yield Label(name="process_sort_index", pid=pid, args={"sort_index": rank})
    told = ["within a step: true lengths, places not known"] + ([] if aligned else ["clock not measured"])
    yield Label(name="process_labels", pid=pid, args={"labels": "; ".join(told)})
    names = {_STEPS_LANE: "steps", _COMPUTE_LANE: "compute"}
    names |= {_FIRST_COLLECTIVE_LANE + index: _lane_name(kind) for index, kind in enumerate(kinds)}
    for lane, name in names.items():
        yield Label(name="thread_name", pid=pid, tid=_tid(rank, lane), args={"name": name})
        yield Label(name="thread_sort_index", pid=pid, tid=_tid(rank, lane), args={"sort_index": lane})


def _step(sample: StepSample, kinds: Sequence[Kind], start_us: int, end_us: int) -> Iterator[TraceEvent]:
    """One step of one rank; whatever is in it lies within `start_us` and `end_us`."""

    def piece(name: str, cat: str, lane: int, begin_us: int, until_us: int, args: Figures) -> Slice:
        begin_us, until_us = min(begin_us, end_us), min(until_us, end_us)
        tid = _tid(sample.rank, lane)
        return Slice(
            name=name, cat=cat, pid=_pid(sample.rank), tid=tid, ts=begin_us, dur=until_us - begin_us, args=args
        )

    figures = sample.model_dump(exclude={"collectives", "time", "rank"})
    yield piece(f"step {sample.step}", "step", _STEPS_LANE, start_us, end_us, figures)
    computed_us = start_us + _us(sample.compute_ms)
    yield piece("compute", "compute", _COMPUTE_LANE, start_us, computed_us, {"ms": sample.compute_ms})
    if sample.exposed_ms > 0:
        waited_us = computed_us + _us(sample.exposed_ms)
        yield piece("exposed", "exposed", _COMPUTE_LANE, computed_us, waited_us, {"ms": sample.exposed_ms})
    for part in sample.collectives:
        kind = (part.name.value, _partition(part.partition))
        lane = _FIRST_COLLECTIVE_LANE + kinds.index(kind)
        landed_us = min(end_us, start_us + _us(part.ms))
        figures = part.model_dump(include={"ms", "exposed_ms", "bytes_sent", "bytes_received"})
        yield piece(_lane_name(kind), "collective", lane, start_us, landed_us, figures)
        if part.exposed_ms > 0:
            waits_us = max(start_us, landed_us - _us(part.exposed_ms))
            yield piece("exposed", "exposed", lane, waits_us, landed_us, {"ms": part.exposed_ms})
    yield Counter(name="exposed_ms", pid=_pid(sample.rank), ts=start_us, args={"exposed_ms": sample.exposed_ms})


def _notes(job_id: str, samples: Sequence[StepSample], ranks: int, begin_us: int) -> TraceNotes:
    uncertain = [sample.clock_uncertainty_ms for sample in samples if sample.clock_uncertainty_ms is not None]
    aligned = _aligned(samples)
    return TraceNotes(
        job_id=job_id,
        first_step=samples[0].step if samples else None,
        last_step=samples[-1].step if samples else None,
        ranks=ranks,
        begins_at=_EPOCH + timedelta(microseconds=begin_us) if samples else None,
        clock_uncertainty_ms=max(uncertain, default=None) if aligned else None,
        placement=_PLACEMENT,
        clocks=_CLOCKS_AGREE if aligned else _CLOCKS_DIFFER,
    )


def _aligned(samples: Sequence[StepSample]) -> bool:
    """Whether the times stand on the monitor's clock: it has been added to them if it is known."""
    return all(sample.clock_offset_ms is not None for sample in samples)


def _lane_name(kind: Kind) -> str:
    name, partition = kind
    return name if partition is None else f"{name} {partition.upper()}"


def _partition(partition: object) -> str | None:
    return None if partition is None else str(partition)


def _pid(rank: int) -> int:
    """Viewers keep process 0 for the idle processor."""
    return rank + 1


def _tid(rank: int, lane: int) -> int:
    return _pid(rank) * _LANES_PER_RANK + lane


def _end_us(sample: StepSample) -> int:
    return (sample.time - _EPOCH) // timedelta(microseconds=1)


def _us(ms: float) -> int:
    return round(1000 * ms)


def _refused(message: str) -> Problem:
    fault = FieldError(field="steps", message=message)
    return Problem(ProblemType.INVALID_REQUEST, f"{fault.field}: {fault.message}", [fault])
