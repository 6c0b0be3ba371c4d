"""A schedule drawn for a terminal of 100 columns: one line per stage in the order of issue, one column per step."""

import textwrap
from collections.abc import Iterable

from pipeline.checks import Violation
from pipeline.schedule import Schedule

COLUMNS = 100


def draw(schedule: Schedule, steps: int = 4) -> str:
    """The timeline of a steady pipeline: each cell is the batch that the stage works on in that step."""
    return "\n".join(_lines(schedule, steps, marks={}))


def draw_violations(schedule: Schedule, violations: Iterable[Violation], steps: int = 4) -> str:
    """The same with each wrong stage marked, and the reasons below."""
    violations = list(violations)
    marks = {violation.stage: violation.check for violation in reversed(violations)}
    reasons = [f"  {violation}" for violation in violations]
    return "\n".join([f"schedule {schedule.name!r} is wrong:", *_lines(schedule, steps, marks), *reasons])


def _lines(schedule: Schedule, steps: int, marks: dict[str, str]) -> list[str]:
    names = max(len(stage.name) for stage in schedule.stages)
    lanes = max(len(stage.lane) for stage in schedule.stages)
    shown = range(schedule.lag, schedule.lag + steps)
    header = f"{'stage':<{names}}  {'lane':<{lanes}}  step" + "".join(f"{step:>3}" for step in shown)
    lines = [f"{header}  needs"]
    for stage in schedule.stages:
        cells = "".join(f"{step - stage.skew:>3}" for step in shown)
        needs = textwrap.wrap(" ".join(map(str, stage.needs)), COLUMNS - len(header) - 2) or [""]
        mark = f"  <-- {marks[stage.name]}" if stage.name in marks else ""
        lines.append(f"{stage.name:<{names}}  {stage.lane:<{lanes}}      {cells}  {needs[0]}{mark}".rstrip())
        lines.extend(" " * (len(header) + 2) + rest for rest in needs[1:])
    return lines
