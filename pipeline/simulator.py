"""A dry run of a schedule: how long a step takes, and how long compute waits, for given stage durations.

Each lane does its stages in the order of issue; a stage starts when its lane is free and its needs are met. A stage
that may run during another interrupts it for a while. The communication lanes share one link: the priority lane gives
way to the dense all-reduce, and the background lane to both.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.checks import Event, events
from pipeline.report import Partition
from pipeline.schedule import Lane, Schedule

COMM_LANES = (Lane.DENSE, Lane.PRIORITY, Lane.BACKGROUND)


@dataclass(frozen=True)
class Load:
    """One step's work. `compute_ms` is all of the compute lane's, `comm_ms` the transfer of all rows and gradients,
    `id_overlap` (0..1) the share of ids that two consecutive batches have in common, `dist_ms` the input dist,
    `dense_ms` the all-reduce of the dense gradients.
    """

    compute_ms: float = 60.0
    comm_ms: float = 60.0
    id_overlap: float = 0.12
    dist_ms: float = 3.0
    dense_ms: float = 3.0

    def __post_init__(self) -> None:
        for name in ("compute_ms", "comm_ms", "dist_ms", "dense_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is negative")
        if not 0 <= self.id_overlap <= 1:
            raise ValueError(f"id_overlap: {self.id_overlap} is not between 0 and 1")


@dataclass(frozen=True)
class Span:
    """When a stage ran for a batch, in milliseconds since the start."""

    event: Event
    begin_ms: float
    end_ms: float


@dataclass(frozen=True)
class Simulation:
    """A simulated run. `step_ms` and `exposed_ms` are means over the steady steps."""

    spans: tuple[Span, ...]
    step_ms: float
    exposed_ms: float


# Shares of the compute lane's work; what the table leaves out costs nothing.
COMPUTE_SHARES = {"lookup": 0.08, "forward": 0.27, "backward": 0.50, "optimizer": 0.05, "apply": 0.10}
SPLIT_SHARES = {**COMPUTE_SHARES, "backward": 0.27, "weight_gradients": 0.23}


def durations(schedule: Schedule, load: Load) -> dict[str, float]:
    """How long each stage takes, in milliseconds."""
    found = {}
    splits = any(stage.name == "weight_gradients" for stage in schedule.stages)
    shares = SPLIT_SHARES if splits else COMPUTE_SHARES
    for stage in schedule.stages:
        prefix, _, rest = stage.name.partition("_")
        share = {Partition.OL.value: load.id_overlap, Partition.NOL.value: 1 - load.id_overlap}.get(prefix, 1.0)
        name = rest if share != 1.0 or prefix in list(Partition) else stage.name
        if stage.lane is Lane.COMPUTE:
            found[stage.name] = shares.get(name, 0.0) * load.compute_ms * share
        elif stage.lane is Lane.DENSE:
            found[stage.name] = load.dense_ms
        elif stage.lane in COMM_LANES:
            found[stage.name] = load.comm_ms / 2 * share
        else:
            found[stage.name] = load.dist_ms / sum(each.lane is stage.lane for each in schedule.stages)
    return found


def simulate(schedule: Schedule, stage_ms: Mapping[str, float], batches: int = 12) -> Simulation:
    """Run `batches` batches through the schedule. Raises ValueError for a stage without a duration."""
    missing = [stage.name for stage in schedule.stages if stage.name not in stage_ms]
    if missing:
        raise ValueError(f"durations: none given for {', '.join(missing)}")
    run = _Run(schedule, stage_ms, batches)
    for event in events(schedule, batches):
        run.take(event)
    spans = sorted(run.spans, key=lambda span: span.begin_ms)
    steady = range(schedule.lead + 1, batches - 1)
    forwards = {span.event.batch: span.begin_ms for span in spans if span.event.stage.name == "forward"}
    step_ms = (forwards[steady[-1]] - forwards[steady[0]]) / (len(steady) - 1)
    return Simulation(tuple(spans), step_ms, sum(run.exposed_ms.get(step, 0.0) for step in steady) / len(steady))


class _Run:
    """What has been done so far, and until when each lane is busy."""

    def __init__(self, schedule: Schedule, stage_ms: Mapping[str, float], batches: int) -> None:
        self._schedule, self._stage_ms, self._batches = schedule, stage_ms, batches
        self._free: dict[Lane, float] = {}
        self._ends: dict[tuple[str, int], float] = {}
        self._put_off: list[Event] = []
        self.spans: list[Span] = []
        self.exposed_ms: dict[int, float] = {}

    def take(self, event: Event) -> None:
        """The next event in the order of issue, unless it has been brought forward."""
        stage, step = event.stage, event.batch + event.stage.skew
        if (stage.name, event.batch) in self._ends:
            return
        # A step of fill or drain may lack the stage into which they were put off.
        self._catch_up(lambda other: other.batch + other.stage.skew < step)
        waits = any(stage.during == other.stage.during for other in self._put_off)
        if self._schedule.may_be_put_off(stage) and (waits or self._ready_ms(event) > self._free.get(stage.lane, 0.0)):
            self._put_off.append(event)
            return
        below = self._schedule.may_be_brought_forward(stage.name)
        early = [Event(each, step - each.skew) for each in below if 0 <= step - each.skew < self._batches]
        self._do(event, self._put_off + early)
        self._catch_up(lambda other: other.stage.during == stage.name)

    def _catch_up(self, due: Callable[[Event], bool]) -> None:
        late, self._put_off = (
            [each for each in self._put_off if due(each)],
            [each for each in self._put_off if not due(each)],
        )
        for each in late:
            if (each.stage.name, each.batch) not in self._ends:
                self._do(each, [])

    def _do(self, event: Event, meanwhile: list[Event]) -> None:
        """One event. Of those in `meanwhile`, each interrupts it as soon as its needs are met and it is its turn."""
        stage = event.stage
        free, ready = self._free.get(stage.lane, 0.0), self._ready_ms(event)
        begin = max(free, ready)
        if stage.lane in COMM_LANES:
            more_urgent = COMM_LANES[: COMM_LANES.index(stage.lane)]
            begin = max([begin, *(self._free.get(lane, 0.0) for lane in more_urgent)])
        if stage.lane is Lane.COMPUTE:
            step = event.batch + stage.skew
            waited = max(0.0, min(begin, self._ready_ms(event, COMM_LANES)) - free)
            self.exposed_ms[step] = self.exposed_ms.get(step, 0.0) + waited
        end = begin + self._stage_ms[stage.name]
        for other in meanwhile:
            if other.stage.during != stage.name or self._ready_ms(other) >= end:
                break
            if other.stage.lane is stage.lane:
                self._free[stage.lane] = max(begin, self._ready_ms(other), self._free.get(stage.lane, 0.0))
                end += self._stage_ms[other.stage.name]
            self._do(other, [])
        self._free[stage.lane] = self._ends[stage.name, event.batch] = end
        self.spans.append(Span(event, begin, end))

    def _ready_ms(self, event: Event, lanes: Sequence[Lane] = tuple(Lane)) -> float:
        """When those of its needs are met that are issued on these lanes; infinity if one still waits for its turn."""
        needs = [need for need in event.stage.needs if self._schedule[need.stage].lane in lanes]
        waiting = (
            {(each.stage.name, each.batch) for each in self._put_off}
            - self._ends.keys()
            - {(event.stage.name, event.batch)}
        )
        keys = [(need.stage, event.batch + need.delta) for need in needs]
        return max((math.inf if key in waiting else self._ends.get(key, 0.0) for key in keys), default=0.0)


def chart(schedule: Schedule, simulation: Simulation, steps: int = 2, width: int = 72) -> str:
    """The steady part of a simulation as text: one line per stage, one column per slice of time."""
    begin = next(
        span.begin_ms
        for span in simulation.spans
        if span.event.stage.name == "forward" and span.event.batch == schedule.lead + 2
    )
    scale = width / (steps * simulation.step_ms)
    names = max(len(stage.name) for stage in schedule.stages)
    lines = []
    for stage in schedule.stages:
        cells = [" "] * width
        for span in simulation.spans:
            if span.event.stage is stage:
                left, right = round((span.begin_ms - begin) * scale), round((span.end_ms - begin) * scale)
                for column in range(max(0, left), min(width, right)):
                    cells[column] = str(span.event.batch % 10)
        lines.append(f"{stage.name:<{names}} |{''.join(cells)}|")
    return "\n".join(lines)
