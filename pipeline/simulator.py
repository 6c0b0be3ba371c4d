"""A dry run of a schedule: how long a step takes, and how long compute waits, for given stage durations.

Each lane does its stages in the order of issue; a stage starts when its lane is free and its needs are met. The
communication lanes share one link: the priority lane gives way to the dense all-reduce, which backward has begun before
it ends, and the background lane to both.
"""

from collections.abc import Mapping
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
    lane_free: dict[Lane, float] = {}
    ends: dict[tuple[str, int], float] = {}
    spans: list[Span] = []
    exposed: dict[int, float] = {}
    for event in events(schedule, batches):
        stage = event.stage
        free = lane_free.get(stage.lane, 0.0)
        ready = {need: ends.get((need.stage, event.batch + need.delta), 0.0) for need in stage.needs}
        begin = max([free, *ready.values()])
        if stage.lane in COMM_LANES:
            more_urgent = COMM_LANES[: COMM_LANES.index(stage.lane)]
            begin = max([begin, *(lane_free.get(lane, 0.0) for lane in more_urgent)])
        if stage.lane is Lane.COMPUTE:
            comm = max((end for need, end in ready.items() if schedule[need.stage].lane in COMM_LANES), default=0.0)
            step = event.batch + stage.skew
            exposed[step] = exposed.get(step, 0.0) + max(0.0, min(begin, comm) - free)
        end = begin + stage_ms[stage.name]
        lane_free[stage.lane] = ends[stage.name, event.batch] = end
        spans.append(Span(event, begin, end))
    steady = range(schedule.lead + 1, batches - 1)
    forwards = {span.event.batch: span.begin_ms for span in spans if span.event.stage.name == "forward"}
    step_ms = (forwards[steady[-1]] - forwards[steady[0]]) / (len(steady) - 1)
    return Simulation(tuple(spans), step_ms, sum(exposed.get(step, 0.0) for step in steady) / len(steady))


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
