"""Single changes to a schedule table, and to the fences that the executor derives from it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import Any
from unittest import mock

from pipeline import schedules
from pipeline.executor import Executor
from pipeline.runtime import CpuRuntime, CudaRuntime, Output
from pipeline.schedule import Lane, Need, Schedule, Stage
from tests.unit.pipeline.clocks import ClockedStream


def drop_need(schedule: str, stage: str, need: Need) -> AbstractContextManager[object]:
    """The stage forgets to declare that it needs something."""
    kept = tuple(each for each in schedules.ALL[schedule][stage].needs if each != need)
    return _replaced(schedule, stage, needs=kept)


def move_skew(schedule: str, stage: str, skew: int) -> AbstractContextManager[object]:
    """The stage works on another batch than it should."""
    return _replaced(schedule, stage, skew=skew)


def move_below(schedule: str, stage: str, below: str) -> AbstractContextManager[object]:
    """The stage is issued at another place of its step."""
    table = schedules.ALL[schedule]
    rest = [each for each in table.stages if each.name != stage]
    place = [each.name for each in rest].index(below) + 1
    return _in_place_of(schedule, (*rest[:place], table[stage], *rest[place:]))


def leave_out(schedule: str, stage: str) -> AbstractContextManager[object]:
    """The stage is missing, and so are the needs that name it."""
    stages = (each for each in schedules.ALL[schedule].stages if each.name != stage)
    return _in_place_of(
        schedule,
        tuple(replace(each, needs=tuple(need for need in each.needs if need.stage != stage)) for each in stages),
    )


def _replaced(schedule: str, stage: str, **changes: Any) -> AbstractContextManager[object]:
    stages = schedules.ALL[schedule].stages
    return _in_place_of(schedule, tuple(replace(each, **changes) if each.name == stage else each for each in stages))


def _in_place_of(schedule: str, stages: tuple[Stage, ...]) -> AbstractContextManager[object]:
    return mock.patch.dict(schedules.ALL, {schedule: Schedule(schedule, stages)})


class Fence(StrEnum):
    """What of a fence is left out."""

    EVENT = "the wait for the event"
    RECORD = "record_stream"
    TRANSFER = "the wait for the transfer"


@contextmanager
def weaken_fence(producer: str, consumers: frozenset[str], what: Fence) -> Iterator[None]:
    """Leave out one part of the fences between a stage's outputs and the stages that read them."""
    run: Any = Executor._run
    runtime = CpuRuntime if what is Fence.TRANSFER else CudaRuntime
    fence: Any = runtime.fence
    aimed_at: list[Output] = []

    def watched_run(executor: Executor, stage: Stage, batch: int) -> None:
        outputs = executor._outputs.items() if stage.name in consumers else ()
        aimed_at[:] = [output for (_, name), output in outputs if name == producer]
        run(executor, stage, batch)

    def weak_fence(self: CudaRuntime | CpuRuntime, lane: Lane, output: Output) -> None:
        if not any(output is each for each in aimed_at):
            fence(self, lane, output)
            return
        match what:
            case Fence.EVENT:
                with mock.patch.object(ClockedStream, "wait_event", return_value=None):
                    fence(self, lane, output)
            case Fence.RECORD:
                fence(self, lane, replace(output, value=None))
            case Fence.TRANSFER:
                fence(self, lane, replace(output, pending=()))

    with mock.patch.object(Executor, "_run", watched_run), mock.patch.object(runtime, "fence", weak_fence):
        yield
