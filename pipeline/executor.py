"""Runs any schedule: one step function, in which fences come from the needs, and fill and drain from the skews."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pipeline.runtime import Output, Runtime
from pipeline.schedule import Need, Schedule, Stage

StageFunction = Callable[["Inputs"], Any]


class NoMoreBatches(Exception):  # noqa: N818 - a signal, not a fault
    """Raised by a stage when its batch does not exist on all ranks. `missing` lists those without, if not all are."""

    def __init__(self, missing: list[int]) -> None:
        super().__init__(missing)
        self.missing = missing


class UndeclaredNeed(AssertionError):  # noqa: N818
    """A stage function reads an output that its stage does not declare as a need."""


class Running(NamedTuple):
    """A stage at work, and the batch that it works on."""

    stage: str
    batch: int


class Inputs:
    """What a stage function may read: the outputs that its stage declares as needs, and nothing else.

    So a need that is forgotten in a schedule fails in the first step, and every value read is fenced and kept alive.
    """

    def __init__(self, stage: Stage, batch: int, values: Mapping[Need, Any]) -> None:
        self._stage = stage
        self._values = values
        self.batch = batch

    def __call__(self, stage: str, delta: int = 0) -> Any:
        """The value of that stage for the batch `delta` further on; None if there is no such batch."""
        need = Need(stage, delta)
        if need not in self._values:
            raise UndeclaredNeed(f"{self._stage.name} reads {need}, which its schedule does not declare as a need")
        return self._values[need]


class Executor:
    """Works through a schedule step by step.

    `batches` counts them once their number is known. It ends with the shortest rank; `missing_ranks` are then those
    that ran out before the others. `running` may be read from any thread; after a failure it is where that happened.
    """

    def __init__(self, schedule: Schedule, functions: Mapping[str, StageFunction], runtime: Runtime) -> None:
        self._schedule = schedule
        self._functions = functions
        self._runtime = runtime
        self._outputs: dict[tuple[int, str], Output] = {}
        self._done: set[tuple[int, str]] = set()
        self._movable: list[tuple[Stage, int]] = []
        self.batches: int | None = None
        self.missing_ranks: list[int] = []
        self.running: Running | None = None
        self.step = -schedule.lead

    @property
    def finished(self) -> bool:
        """Whether every stage of every batch has run."""
        return self.batches is not None and self.step >= self.batches + self._schedule.lag

    @property
    def pending(self) -> bool:
        """Whether some batch has had its forward, but not yet all that follows it."""
        return any(self._late_stages())

    def run_step(self) -> int:
        """Issue the next step's stages in order. Returns the batch whose forward belongs to this step."""
        for stage in self._schedule.stages:
            batch = self.step - stage.skew
            if self._is_due(stage):
                if self._schedule.may_be_put_off(stage) and not self._ready(stage, batch):
                    self._movable.append((stage, batch))
                    continue
                below = self._schedule.may_be_brought_forward(stage.name)
                self._movable += [(each, self.step - each.skew) for each in below if self._is_due(each)]
                try:
                    self._run(stage, batch)
                except NoMoreBatches as end:
                    self.batches, self.missing_ranks, self.running = batch, end.missing, None
            self._catch_up(stage.name)
        forward = self.step
        self.step += 1
        self._forget()
        return forward

    def poll(self) -> bool:
        """Run what may run during the present stage and has its inputs by now. A long stage calls it in between, while
        it returns True: something may still come.
        """
        # In order, so that all ranks start their transfers in the same one.
        while self._movable and self._ready(*self._movable[0]):
            self._run(*self._movable.pop(0))
        return bool(self._movable)

    def value(self, stage: str, batch: int) -> Any:
        """The value that a stage produced for a batch, while it is still kept."""
        return self._outputs[batch, stage].value

    def flush(self) -> None:
        """Run ahead of time what later steps would still do for batches whose forward has run."""
        for stage, batch in list(self._late_stages()):
            self._run(stage, batch)

    def look_up_again(self) -> None:
        """Repeat what was looked up ahead of time, and what follows from it: the tables have changed from outside."""
        for batch in range(self.step, self.step + self._schedule.lead):
            for stage in self._schedule.stages:
                if stage.name in self._schedule.looked_up_ahead and (batch, stage.name) in self._done:
                    self._run(stage, batch)

    def _late_stages(self) -> list[tuple[Stage, int]]:
        return [
            (stage, batch)
            for batch in range(max(0, self.step - self._schedule.lag), self.step)
            for stage in self._schedule.stages
            if stage.skew > 0 and self._exists(batch) and (batch, stage.name) not in self._done
        ]

    def _exists(self, batch: int) -> bool:
        return self.batches is None or batch < self.batches

    def _is_due(self, stage: Stage) -> bool:
        batch = self.step - stage.skew
        return batch >= 0 and (batch, stage.name) not in self._done and self._exists(batch)

    def _ready(self, stage: Stage, batch: int) -> bool:
        """Whether everything that a movable stage needs has been issued, and would not hold it up."""
        late = {(other.name, each) for other, each in self._movable if (other, each) != (stage, batch)}
        needed = [(batch + need.delta, need.stage) for need in stage.needs]
        if any((name, each) in late for each, name in needed):
            return False
        arrived = self._runtime.arrived if self._schedule.may_be_put_off(stage) else self._runtime.reached
        return all(arrived(self._outputs[key]) for key in needed if key in self._outputs)

    def _catch_up(self, ended: str) -> None:
        """Run what was put off until this stage and no longer; what was not brought forward runs in its own place."""
        movable, self._movable = self._movable, []
        for stage, batch in movable:
            if stage.during != ended:
                self._movable.append((stage, batch))
            elif self._schedule.may_be_put_off(stage):
                self._run(stage, batch)

    def _run(self, stage: Stage, batch: int) -> None:
        # A stage may run others while it lasts.
        outer, self.running = self.running, Running(stage.name, batch)
        values: dict[Need, Any] = {}
        for need in stage.needs:
            output = self._outputs.get((batch + need.delta, need.stage))
            assert output is not None or not self._kept(batch + need.delta, need.stage), (
                f"{stage}({batch}) lacks {need}"
            )
            if output is not None:
                self._runtime.fence(stage.lane, output)
            values[need] = output.value if output is not None else None
        with self._runtime.lane(stage.lane):
            value = self._functions[stage.name](Inputs(stage, batch, values))
            self._outputs[batch, stage.name] = self._runtime.finish(stage.lane, value)
        self._done.add((batch, stage.name))
        self.running = outer

    def _kept(self, batch: int, stage: str) -> bool:
        """Whether there should be an output: the batch exists, and a step that reads it is still to come."""
        return batch >= 0 and self._exists(batch) and batch + self._schedule.last_use[stage] >= self.step

    def _forget(self) -> None:
        """Drop outputs that no later step reads."""
        last_use = self._schedule.last_use
        for batch, name in list(self._outputs):
            # What belongs to the batch whose step has just ended is still asked for by `value`.
            if batch + last_use[name] < self.step and batch < self.step - 1:
                del self._outputs[batch, name]
        horizon = self.step - self._schedule.lag - 1
        self._done = {(batch, name) for batch, name in self._done if batch >= horizon}
