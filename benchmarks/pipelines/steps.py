"""A contestant's step in detail: which stage ran when and for how long, which collective was in flight meanwhile."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.pipelines.records import LINK, WAIT, Span, StageTime, StepTimeline
from benchmarks.pipelines.runners import Runner
from pipeline.executor import StageFunction
from pipeline.schedule import Lane

COMPUTE = Lane.COMPUTE.name.lower()
# The steps before the one that is shown bring the pipeline back into its stride.
STRIDE = 3


def timeline_of(runner: Runner) -> StepTimeline:
    """Train a few steps and return the last one. Every rank calls it at the same point."""
    for _ in range(STRIDE):
        runner.step()
    return _of_overlane(runner) if runner.overlane is not None else _of_torchrec(runner)


def stage_times(runner: Runner, steps: int = 15) -> tuple[StageTime, ...]:
    """Train some steps of Overlane and return how long each stage takes; nothing for TorchRec."""
    if runner.overlane is None:
        return ()
    by_stage: dict[str, list[float]] = {}
    for _ in range(steps):
        for span in _of_overlane(runner).spans:
            if span.lane not in (LINK, WAIT):
                by_stage.setdefault(span.name, []).append(span.end_ms - span.begin_ms)
    return tuple(
        StageTime(contestant=runner.contestant.name, stage=stage, ms=statistics.median(found))
        for stage, found in by_stage.items()
    )


def _of_overlane(runner: Runner) -> StepTimeline:
    pipe: Any = runner.overlane
    functions: dict[str, StageFunction] = pipe._functions
    timeline = pipe._runtime.timeline
    original = dict(functions)
    lanes = {stage.name: str(stage.lane.name).lower() for stage in pipe._schedule.stages}
    spans: list[Span] = []
    begin = _now_ms()
    for name, function in original.items():
        functions[name] = _timed(function, lanes[name], name, begin, spans)
    flying = list(timeline._open)
    try:
        runner.step()
    finally:
        functions.update(original)
    end = _now_ms()
    issued = timeline._windows[-1].issued if timeline._windows else []
    for flight in {id(each): each for each in [*flying, *issued]}.values():
        name = str(flight.name) if flight.partition is None else f"{flight.partition} {flight.name}"
        ended = end if flight.end is None else flight.end
        spans.append(
            Span(lane=LINK, name=name, begin_ms=max(0.0, flight.begin - begin), end_ms=min(end, ended) - begin)
        )
        spans += [
            Span(lane=WAIT, name=name, begin_ms=max(0.0, since - begin), end_ms=min(end, until) - begin)
            for since, until in flight.waits
            if until > begin
        ]
    return StepTimeline(contestant=runner.contestant.name, step_ms=end - begin, spans=tuple(spans))


def _timed(function: StageFunction, lane: str, name: str, begin: float, spans: list[Span]) -> Callable[[Any], Any]:
    def timed(inputs: Any) -> Any:
        since = _now_ms()
        value = function(inputs)
        spans.append(Span(lane=lane, name=name, begin_ms=since - begin, end_ms=_now_ms() - begin))
        return value

    return timed


def _of_torchrec(runner: Runner) -> StepTimeline:
    """TorchRec names its phases and waits for the profiler; gloo names its collectives.

    What DDP and the AllToAll of gradients wait for inside backward has no name there, and is not shown as a wait.
    """
    begin = _now_ms()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        runner.step()
        end = _now_ms()
    events = [event for event in profiled.events() if event.name.startswith(("gloo:", "## "))]
    origin = min((event.time_range.start for event in profiled.events()), default=0.0)
    spans = [
        Span(
            lane=_lane(event.name),
            name=event.name.removeprefix("gloo:").strip("# ").removesuffix(" wait()"),
            begin_ms=(event.time_range.start - origin) / 1e3,
            end_ms=(event.time_range.end - origin) / 1e3,
        )
        for event in events
    ]
    return StepTimeline(contestant=runner.contestant.name, step_ms=end - begin, spans=outermost(spans))


def _lane(name: str) -> str:
    if name.startswith("gloo:"):
        return LINK
    return WAIT if "wait()" in name else COMPUTE


def outermost(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Without phases and waits that lie inside another one of the same lane; collectives all stay."""
    kept: list[Span] = []
    reached: dict[str, float] = {}
    for span in sorted(spans, key=lambda span: (span.begin_ms, -span.end_ms)):
        if span.lane == LINK or span.end_ms > reached.get(span.lane, -1.0):
            kept.append(span)
            reached[span.lane] = span.end_ms
    return tuple(kept)


def _now_ms() -> float:
    return time.perf_counter_ns() / 1e6
