"""What ranks write and what is made of it."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from benchmarks.pipelines.scenario import Contestant, Scenario
from benchmarks.results import FOLDER, Ratio, Result
from pipeline.report import CollectiveName, CollectiveReport, StepReport


class Block(BaseModel):
    """One rank's counted steps of one contestant in one turn.

    `foreign_share` is what other programs took of the machine's cores meanwhile.
    """

    model_config = ConfigDict(frozen=True)

    turn: int
    contestant: str
    step_ms: tuple[float, ...]
    reports: tuple[StepReport, ...] = ()
    foreign_share: float = 0.0


EMBEDDING = frozenset({CollectiveName.EMBEDDING, CollectiveName.GRADIENT})
# What a bar of a timeline stands for, if not for a stage on one of the schedule's lanes.
LINK, WAIT = "link", "wait"


class Span(BaseModel):
    """A bar of a timeline, in ms from the begin of its step.

    `lane` is the lane of a stage, `link` for a collective in flight, `wait` for the compute lane waiting for one.
    """

    model_config = ConfigDict(frozen=True)

    lane: str
    name: str
    begin_ms: float
    end_ms: float


class StepTimeline(BaseModel):
    """One step of one contestant on rank 0."""

    model_config = ConfigDict(frozen=True)

    contestant: str
    step_ms: float
    spans: tuple[Span, ...]


class StageTime(BaseModel):
    """How long a stage of one of Overlane's contestants takes on a rank: the median of a few steps."""

    model_config = ConfigDict(frozen=True)

    contestant: str
    stage: str
    ms: float


class RankRecord(BaseModel):
    """All that one rank has measured. `unable` says which contestants do not run, and why."""

    model_config = ConfigDict(frozen=True)

    rank: int
    blocks: tuple[Block, ...]
    timelines: tuple[StepTimeline, ...]
    stages: tuple[StageTime, ...] = ()
    unable: dict[str, str]
    unequal: dict[str, tuple[str, ...]]


class Collective(BaseModel):
    """One kind of collective: means over the counted steps and the ranks."""

    name: str
    partition: str | None
    ms: float
    exposed_ms: float
    bytes_sent: float


class Outcome(BaseModel):
    """One contestant. A step time is the median of a block on its slowest rank; `blocks_ms` has one for each turn."""

    contestant: Contestant
    blocks_ms: tuple[float, ...]
    median_ms: float
    lower_quartile_ms: float
    upper_quartile_ms: float
    collectives: tuple[Collective, ...]
    id_overlap: float | None
    foreign_share: float

    @classmethod
    def of(cls, contestant: Contestant, ranks: Sequence[RankRecord]) -> Self:
        """From the blocks of all ranks, of which there must be at least two turns."""
        mine = [[block for block in rank.blocks if block.contestant == contestant.name] for rank in ranks]
        blocks = tuple(max(statistics.median(each.step_ms) for each in turn) for turn in zip(*mine, strict=True))
        lower, median, upper = statistics.quantiles(blocks, n=4)
        reports = [report for rank in mine for block in rank for report in block.reports]
        shares = [report.id_overlap for report in reports if report.id_overlap is not None]
        return cls(
            contestant=contestant,
            blocks_ms=blocks,
            median_ms=median,
            lower_quartile_ms=lower,
            upper_quartile_ms=upper,
            collectives=_collectives(reports),
            id_overlap=statistics.mean(shares) if shares else None,
            foreign_share=statistics.median(block.foreign_share for block in mine[0]),
        )

    @property
    def exposed_ms(self) -> float:
        return sum(each.exposed_ms for each in self.collectives)

    @property
    def exposed_embedding_ms(self) -> float:
        """Of embeddings and their gradients."""
        return sum(each.exposed_ms for each in self.collectives if each.name in EMBEDDING)


def _collectives(reports: Sequence[StepReport]) -> tuple[Collective, ...]:
    kinds: dict[tuple[str, str | None], list[CollectiveReport]] = {}
    for report in reports:
        for each in report.collectives:
            kinds.setdefault((each.name, each.partition), []).append(each)
    return tuple(
        Collective(
            name=name,
            partition=partition,
            # A collective that is not in flight during a step does not stand in its report.
            ms=sum(each.ms for each in found) / len(reports),
            exposed_ms=sum(each.exposed_ms for each in found) / len(reports),
            bytes_sent=sum(each.bytes_sent for each in found) / len(reports),
        )
        for (name, partition), found in kinds.items()
    )


class ScenarioRecord(BaseModel):
    """One scenario. `communication_ms` is the limit of the link: None where it has no limit."""

    scenario: Scenario
    outcomes: tuple[Outcome, ...]
    unable: dict[str, str]
    unequal: dict[str, tuple[str, ...]]
    communication_ms: float | None
    timelines: tuple[StepTimeline, ...]
    stages: tuple[StageTime, ...] = ()

    def outcome(self, name: str) -> Outcome | None:
        """The contestant of that name, if it ran."""
        return next((each for each in self.outcomes if each.contestant.name == name), None)

    def stage_ms(self, contestant: str, stages: Sequence[str]) -> float:
        """The time that these stages take together, on rank 0."""
        return sum(each.ms for each in self.stages if each.contestant == contestant and each.stage in stages)

    def ratio(self, one: str, other: str) -> Ratio | None:
        """Turn by turn; None if one of them did not run."""
        mine, theirs = self.outcome(one), self.outcome(other)
        if mine is None or theirs is None:
            return None
        turns = list(zip(mine.blocks_ms, theirs.blocks_ms, strict=True))
        return Ratio.of(one, other, turns)


class PipelinesResult(Result):
    """The result file, with all that the page is drawn from."""

    scenarios: tuple[ScenarioRecord, ...] = ()

    @property
    def page(self) -> Path:
        return FOLDER / f"{self.name}.svg"
