"""The page of plots: step time against the limits, exposed communication, one step of each pipeline."""

import os
import tempfile
from typing import Any

# Its cache of fonts would otherwise stay behind in the user's home.
_CACHE = tempfile.TemporaryDirectory()
os.environ.setdefault("MPLCONFIGDIR", _CACHE.name)

from matplotlib import colormaps, pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

from benchmarks.pipelines.records import LINK, WAIT, Outcome, PipelinesResult, ScenarioRecord, StepTimeline  # noqa: E402
from benchmarks.pipelines.scenario import Family  # noqa: E402
from pipeline.timeline import KINDS  # noqa: E402

# The same colour for the same collective in every plot.
COLLECTIVES = {
    (f"{partition} {name}" if partition else str(name)): colormaps["tab20"](place)
    for place, (name, partition) in enumerate(KINDS)
}
BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "fontsize": 6}
COLORS = {Family.TORCHREC: "#8c8c8c", Family.OVERLANE: "#1f77b4", Family.LIMIT: "#d9d9d9"}
LANES = {
    "compute": "#1f77b4",
    "priority": "#d62728",
    "background": "#ff9896",
    "dense": "#e377c2",
    "dist": "#9467bd",
    "copy": "#c5b0d5",
}
ON_THE_LINK, WAITING, OTHER_LANE = "#2ca02c", "#ffbf00", "#7f7f7f"
_ROW_INCHES, _LANE_INCHES = 3.0, 1.5
# A shorter bar has no room for its name.
_NAMED_SHARE = 0.035


def draw(result: PipelinesResult) -> None:
    """Write the page beside the result file. The timelines are those of the first scenario."""
    timelines = result.scenarios[0].timelines
    heights = [_ROW_INCHES] * len(result.scenarios) + [_LANE_INCHES] * len(timelines)
    pyplot.switch_backend("svg")
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "overlane", "font.size": 8}):
        figure = pyplot.figure(figsize=(12, sum(heights) + 1), layout="constrained")
        grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
        for row, record in enumerate(result.scenarios):
            _step_times(figure.add_subplot(grid[row, 0]), record)
            _exposed(figure.add_subplot(grid[row, 1]), record)
        longest = max((timeline.step_ms for timeline in timelines), default=0.0)
        for row, timeline in enumerate(timelines, len(result.scenarios)):
            _timeline(figure.add_subplot(grid[row, :]), timeline, longest)
        figure.suptitle(f"{result.what}\n{result.machine}, {result.cpus} CPUs, {result.taken_at}")
        result.page.parent.mkdir(exist_ok=True)
        figure.savefig(result.page, metadata={"Date": None})
        pyplot.close(figure)


def _step_times(axes: Axes, record: ScenarioRecord) -> None:
    outcomes = record.outcomes
    errors = [
        [each.median_ms - each.lower_quartile_ms for each in outcomes],
        [each.upper_quartile_ms - each.median_ms for each in outcomes],
    ]
    axes.barh(
        [each.contestant.name for each in outcomes],
        [each.median_ms for each in outcomes],
        xerr=errors,
        color=[COLORS[each.contestant.family] for each in outcomes],
    )
    for place, each in enumerate(outcomes):
        axes.annotate(f" {each.median_ms:.0f}", (each.upper_quartile_ms, place), va="center")
    if record.communication_ms is not None:
        axes.axvline(record.communication_ms, color=ON_THE_LINK, linestyle="--", label="communication only")
    compute = record.outcome("compute only")
    if compute is not None:
        axes.axvline(compute.median_ms, color="black", linestyle=":", label="compute only")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title(f"{record.scenario.title}: step, ms (median of turns, quartiles)", fontsize=8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**BESIDE)


def _exposed(axes: Axes, record: ScenarioRecord) -> None:
    outcomes = [each for each in record.outcomes if each.contestant.family is Family.OVERLANE]
    names = list(dict.fromkeys(_kind(each) for outcome in outcomes for each in outcome.collectives))
    reached = [0.0] * len(outcomes)
    for name in names:
        widths = [_exposed_ms(outcome, name) for outcome in outcomes]
        axes.barh(
            [each.contestant.name for each in outcomes], widths, left=reached, label=name, color=COLLECTIVES[name]
        )
        reached = [left + width for left, width in zip(reached, widths, strict=True)]
    for place, width in enumerate(reached):
        axes.annotate(f" {width:.0f}", (width, place), va="center")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title("exposed communication in a step, ms, by collective", fontsize=8)
    if names:
        axes.legend(**BESIDE)


def _kind(collective: Any) -> str:
    return f"{collective.partition} {collective.name}" if collective.partition else str(collective.name)


def _exposed_ms(outcome: Outcome, kind: str) -> float:
    return sum(each.exposed_ms for each in outcome.collectives if _kind(each) == kind)


def _timeline(axes: Axes, timeline: StepTimeline, longest: float) -> None:
    """Stages above, the compute lane's waits in the middle, collectives in flight below, each kind in a row."""
    kinds = list(dict.fromkeys(span.name for span in timeline.spans if span.lane == LINK))
    rows = {LINK: 0, WAIT: 1}
    for span in timeline.spans:
        width = span.end_ms - span.begin_ms
        if span.lane == LINK:
            share = 0.9 / len(kinds)
            top = rows[LINK] - 0.45 + kinds.index(span.name) * share
            axes.broken_barh([(span.begin_ms, width)], (top, share * 0.9), color=ON_THE_LINK)
            bottom = top + share / 2
        else:
            bottom = rows.get(span.lane, 2)
            color = WAITING if span.lane == WAIT else LANES.get(span.lane, OTHER_LANE)
            axes.broken_barh([(span.begin_ms, width)], (bottom - 0.45, 0.9), color=color, edgecolor="white", lw=0.3)
        if width > _NAMED_SHARE * longest:
            axes.annotate(span.name, (span.begin_ms + width / 2, bottom), ha="center", va="center", fontsize=5)
    axes.set_yticks([0, 1, 2], ["in flight", "waits", "host"])
    axes.set_xlim(0, longest * 1.02)
    axes.set_title(f"{timeline.contestant}: one step on rank 0, ms", fontsize=8, loc="left")
    axes.legend(handles=_legend({span.lane for span in timeline.spans}), **BESIDE)


def _legend(lanes: set[str]) -> list[Patch]:
    return [Patch(color=color, label=f"{lane} lane") for lane, color in LANES.items() if lane in lanes]
