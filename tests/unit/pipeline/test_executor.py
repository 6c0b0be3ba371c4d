"""Stages that may move: put off if their input is late, brought forward if it is early, and done once in any case."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pipeline.executor import Executor, Inputs, NoMoreBatches
from pipeline.runtime import Output, Runtime
from pipeline.runtime.base import Pending
from pipeline.schedule import Lane, Schedule, stage

TABLE = Schedule(
    "late",
    (
        stage("send", Lane.BACKGROUND, 0),
        stage("apply", Lane.COMPUTE, 0, "send", during="backward"),
        stage("look_up", Lane.COMPUTE, 0, "apply", during="backward"),
        stage("backward", Lane.COMPUTE, 0),
        stage("optimizer", Lane.COMPUTE, 0, "look_up"),
    ),
)
EARLY = Schedule(
    "early",
    (
        stage("send", Lane.BACKGROUND, 0),
        stage("backward", Lane.COMPUTE, 0),
        stage("reduce", Lane.DENSE, 0),
        stage("apply", Lane.COMPUTE, 0, "send", during="backward"),
        stage("look_up", Lane.COMPUTE, 0, "apply", during="backward"),
        stage("optimizer", Lane.COMPUTE, 0, "look_up"),
    ),
)


class Late(Runtime):
    """What `send` has sent arrives when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.here = False

    @contextmanager
    def lane(self, lane: Lane) -> Iterator[None]:
        yield

    def fence(self, lane: Lane, output: Output) -> None: ...

    def arrived(self, output: Output) -> bool:
        return self.here or output.value != "send"

    def reached(self, output: Output) -> bool:
        return self.arrived(output)

    def finish(self, lane: Lane, value: Any) -> Output:
        return Output(value, lane, (), None)

    def start(self, pending: Pending) -> None: ...

    def join(self, pending: Pending) -> None: ...

    def moment(self) -> float:
        return 0.0


def order_of_stages(schedule: Schedule, arrives: str, batches: int = 1) -> list[str]:
    """The transfer of each step arrives at once, at the second of three polls of `backward`, or never."""
    runtime = Late()
    runtime.here = arrives == "in time"
    done: list[str] = []

    def function(name: str) -> Callable[[Inputs], str]:
        def run(inputs: Inputs) -> str:
            if name == "send" and inputs.batch == batches:
                raise NoMoreBatches([])
            for poll in range(3) if name == "backward" else ():
                runtime.here = runtime.here or (arrives == "in backward" and poll == 1)
                executor.poll()
                done.append(f"poll {poll}")
            done.append(name)
            return name

        return run

    executor = Executor(schedule, {each.name: function(each.name) for each in schedule.stages}, runtime)
    for _ in range(batches + 1):
        executor.run_step()
    assert executor.finished
    return done


@pytest.mark.parametrize(
    ("arrives", "expected"),
    [
        ("in time", ["send", "apply", "look_up", "poll 0", "poll 1", "poll 2", "backward", "optimizer"]),
        ("in backward", ["send", "poll 0", "apply", "look_up", "poll 1", "poll 2", "backward", "optimizer"]),
        ("never", ["send", "poll 0", "poll 1", "poll 2", "backward", "apply", "look_up", "optimizer"]),
    ],
)
def test_a_late_stage_runs_as_soon_as_it_can_and_at_the_latest_after_the_long_one(
    arrives: str, expected: list[str]
) -> None:
    assert order_of_stages(TABLE, arrives) == expected


@pytest.mark.parametrize(
    ("arrives", "expected"),
    [
        ("in time", ["send", "apply", "look_up", "poll 0", "poll 1", "poll 2", "backward", "reduce", "optimizer"]),
        ("in backward", ["send", "poll 0", "apply", "look_up", "poll 1", "poll 2", "backward", "reduce", "optimizer"]),
        ("never", ["send", "poll 0", "poll 1", "poll 2", "backward", "reduce", "apply", "look_up", "optimizer"]),
    ],
)
def test_an_early_stage_runs_as_soon_as_it_can_and_at_the_latest_in_its_place(
    arrives: str, expected: list[str]
) -> None:
    assert order_of_stages(EARLY, arrives) == expected


@pytest.mark.parametrize("schedule", [TABLE, EARLY], ids=["put off", "brought forward"])
@pytest.mark.parametrize("arrives", ["in time", "in backward", "never"])
def test_a_stage_that_moves_is_done_once_in_every_step(schedule: Schedule, arrives: str) -> None:
    done = order_of_stages(schedule, arrives, batches=3)
    assert [done.count(each.name) for each in schedule.stages] == [3] * len(schedule.stages)
