"""A schedule drawn for a terminal: one line per stage in the order of issue, one column per step."""

from collections.abc import Iterable

from pipeline.checks import Violation
from pipeline.schedule import Schedule


def draw(schedule: Schedule, steps: int = 4) -> str:
    """The timeline of the first steps in a steady pipeline: each cell is the batch that the stage works on."""
    return "\n".join(_lines(schedule, steps, marks={}))


def draw_violations(schedule: Schedule, violations: Iterable[Violation], steps: int = 4) -> str:
    """The same with each wrong stage marked, and the reasons below."""
    violations = list(violations)
    marks = {violation.stage: f"  <-- {violation.check}" for violation in reversed(violations)}
    reasons = [f"  {violation}" for violation in violations]
    return "\n".join([f"schedule {schedule.name!r} is wrong:", *_lines(schedule, steps, marks), *reasons])


def _lines(schedule: Schedule, steps: int, marks: dict[str, str]) -> list[str]:
    names = max(len(stage.name) for stage in schedule.stages)
    lanes = max(len(stage.lane) for stage in schedule.stages)
    first = max(0, schedule.lag)
    header = f"{'stage':<{names}}  {'lane':<{lanes}}  " + "".join(
        f"{f'step {s}':>8}" for s in range(first, first + steps)
    )
    lines = [header + "   needs"]
    for stage in schedule.stages:
        cells = "".join(f"{step - stage.skew:>8}" for step in range(first, first + steps))
        needs = " ".join(map(str, stage.needs))
        lines.append(f"{stage.name:<{names}}  {stage.lane:<{lanes}}  {cells}   {needs}{marks.get(stage.name, '')}")
    return lines
