"""What a schedule is: a tuple of frozen stages, from which order, fences, fill and drain follow.

In step s, a stage works on batch s minus its skew. The order of the stages is the order of issue within a step. A need
`overlap(+1)` of batch b is the output of stage `overlap` for batch b+1. `reads` and `writes` name table rows and are
declared apart from `needs`, so that a forgotten need is found by the checks rather than trusted.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from functools import cached_property
from itertools import product
from typing import Self


class Lane(StrEnum):
    """Where a stage runs. On CUDA a lane is a stream; on CPU it names who waits for whom."""

    COPY = "copy"
    DIST = "dist"
    COMPUTE = "compute"
    PRIORITY = "priority comm"
    BACKGROUND = "background comm"
    DENSE = "dense comm"


RowIds = frozenset[int]


class TableRows(Enum):
    """The table rows that a stage reads or writes, relative to its batch b."""

    ALL = "those in b"
    OL_WITH_PREVIOUS = "those in b and b-1"
    NOL_WITH_PREVIOUS = "those in b, not in b-1"
    OL_WITH_NEXT = "those in b and b+1"
    NOL_WITH_NEXT = "those in b, not in b+1"

    def select(self, rows_of: Callable[[int], RowIds], batch: int) -> RowIds:
        """The rows meant for `batch`, where `rows_of(b)` are the rows that batch b uses (none outside the data)."""
        rows = rows_of(batch)
        match self:
            case TableRows.ALL:
                return rows
            case TableRows.OL_WITH_PREVIOUS:
                return rows & rows_of(batch - 1)
            case TableRows.NOL_WITH_PREVIOUS:
                return rows - rows_of(batch - 1)
            case TableRows.OL_WITH_NEXT:
                return rows & rows_of(batch + 1)
            case TableRows.NOL_WITH_NEXT:
                return rows - rows_of(batch + 1)


@dataclass(frozen=True)
class Need:
    """The output of `stage` for the batch `delta` after (before, if negative) the consumer's batch."""

    stage: str
    delta: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `stage`, `stage(+1)` or `stage(-2)`. Raises ValueError for anything else."""
        match = re.fullmatch(r"([a-z][a-z0-9_]*)(?:\(([+-][1-9])\))?", text)
        if match is None:
            raise ValueError(f"need {text!r}: expected 'stage', 'stage(+1)' or 'stage(-1)'")
        return cls(match[1], int(match[2] or 0))

    def __str__(self) -> str:
        return f"{self.stage}({self.delta:+d})" if self.delta else self.stage


@dataclass(frozen=True)
class Stage:
    """One line of a schedule.

    It may run `during` another, long one that touches no table rows, so that it makes no difference when within it that
    happens. A stage above the long one stays in its place unless what it needs is late, and is then put off into it. A
    stage below is brought forward into it as soon as what it needs is there.
    """

    name: str
    lane: Lane
    skew: int
    needs: tuple[Need, ...] = ()
    reads: TableRows | None = None
    writes: TableRows | None = None
    during: str | None = None


@dataclass(frozen=True)
class Schedule:
    """A named table of stages. Raises ValueError for a stage that is named twice or needed but absent."""

    name: str
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"schedule {self.name!r}: stage {name!r} stands there twice")
        for stage in self.stages:
            for need in stage.needs:
                if need.stage not in names:
                    raise ValueError(f"schedule {self.name!r}: {stage.name} needs {need}, but there is no such stage")
            if stage.during is not None:
                self._check_during(names, stage, stage.during)

    def _check_during(self, names: list[str], stage: Stage, during: str) -> None:
        if during not in names or during == stage.name:
            raise ValueError(f"schedule {self.name!r}: {stage.name} runs during {during}, but there is no such stage")
        begin, end = sorted((names.index(stage.name), names.index(during)))
        for other in self.stages[begin : end + 1]:
            if other.during == during:
                continue
            if other.reads or other.writes:
                raise ValueError(f"schedule {self.name!r}: {other.name} uses rows while {stage.name} may be moved")
            # Every rank moves it as its own transfers arrive, and all must start theirs in the same order.
            if other.lane in (stage.lane, Lane.DIST) and stage.lane in (Lane.PRIORITY, Lane.BACKGROUND):
                raise ValueError(f"schedule {self.name!r}: {stage.name} may overtake {other.name} on some ranks only")

    def __getitem__(self, name: str) -> Stage:
        return self._by_name[name]

    def position(self, name: str) -> int:
        """The place of a stage in the order of issue within a step."""
        return self.stages.index(self[name])

    @cached_property
    def _by_name(self) -> dict[str, Stage]:
        return {stage.name: stage for stage in self.stages}

    def may_be_put_off(self, stage: Stage) -> bool:
        """Whether it may run during a stage further down, rather than further up."""
        return stage.name in self._may_be_put_off

    @cached_property
    def _may_be_put_off(self) -> frozenset[str]:
        above = {during: self.stages[: self.position(during)] for during in self._long}
        return frozenset(stage.name for stage in self.stages if stage in above.get(stage.during or "", ()))

    def may_be_brought_forward(self, into: str) -> tuple[Stage, ...]:
        """The stages below `into` that may run during it, in order."""
        return self._may_be_brought_forward.get(into, ())

    @cached_property
    def _may_be_brought_forward(self) -> dict[str, tuple[Stage, ...]]:
        below = {during: self.stages[self.position(during) :] for during in self._long}
        return {during: tuple(stage for stage in below[during] if stage.during == during) for during in self._long}

    @property
    def _long(self) -> set[str]:
        return {stage.during for stage in self.stages if stage.during is not None}

    @property
    def variants(self) -> list[Self]:
        """The table as it stands, and with the stages that may be put off, brought forward, or both, moved as far as
        they may be.
        """
        return [self._moved(late=late, early=early) for late, early in product((False, True), repeat=2)]

    def _moved(self, *, late: bool, early: bool) -> Self:
        put_off = [stage for stage in self.stages if late and self.may_be_put_off(stage)]
        brought = [stage for stage in self.stages if early and stage.during and not self.may_be_put_off(stage)]
        stages = [stage for stage in self.stages if stage not in (*put_off, *brought)]
        names = [stage.name for stage in stages]
        for below, moves in ((1, reversed(put_off)), (0, brought)):
            for stage in moves:
                place = names.index(stage.during or "") + below
                stages.insert(place, stage)
                names.insert(place, stage.name)
        return replace(self, stages=tuple(replace(stage, during=None) for stage in stages))

    @cached_property
    def lead(self) -> int:
        """How many steps before its forward a batch enters the pipeline."""
        return max(-stage.skew for stage in self.stages)

    @cached_property
    def lag(self) -> int:
        """How many steps after its forward a batch leaves the pipeline."""
        return max(stage.skew for stage in self.stages)

    @cached_property
    def looked_up_ahead(self) -> frozenset[str]:
        """The stages before a batch's forward that read table rows, and those that depend on what they read."""
        found: set[str] = set()
        for stage in self.stages:
            depends = any(need.stage in found and need.delta == 0 for need in stage.needs)
            if stage.skew < 0 and (stage.reads is not None or depends):
                found.add(stage.name)
        return frozenset(found)

    @cached_property
    def last_use(self) -> dict[str, int]:
        """For each stage the step, counted from its batch, in which its output is read for the last time."""
        last = {stage.name: stage.skew for stage in self.stages}
        for consumer in self.stages:
            for need in consumer.needs:
                last[need.stage] = max(last[need.stage], consumer.skew - need.delta)
        return last


def stage(
    name: str,
    lane: Lane,
    skew: int,
    needs: str = "",
    *,
    reads: TableRows | None = None,
    writes: TableRows | None = None,
    during: str | None = None,
) -> Stage:
    """A stage with its needs in the short spelling, e.g. `"overlap ol_apply(-1)"`."""
    return Stage(name, lane, skew, tuple(map(Need.parse, needs.split())), reads, writes, during)
