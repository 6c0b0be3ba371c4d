"""What is made of the measurements, without measuring."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.pipelines import page
from benchmarks.pipelines.__main__ import main
from benchmarks.pipelines.link import FRAMING, communication_ms
from benchmarks.pipelines.neighbours import TICKS_PER_S, OthersTime, used_s
from benchmarks.pipelines.records import (
    LINK,
    WAIT,
    Block,
    Outcome,
    PipelinesResult,
    RankRecord,
    ScenarioRecord,
    Span,
    StageTime,
    StepTimeline,
)
from benchmarks.pipelines.report import result, table
from benchmarks.pipelines.scenario import STANDARD, Contestant, Family, Scenario, Transport
from benchmarks.pipelines.steps import outermost
from pipeline.report import CollectiveName, CollectiveReport, Partition, StepReport

OURS = Contestant(name="prioritized", family=Family.OVERLANE, pipeline="prioritized")
THEIRS = Contestant(name="TorchRec SparseDist", family=Family.TORCHREC, pipeline="TrainPipelineSparseDist")


def _report(*collectives: CollectiveReport) -> StepReport:
    return StepReport(
        step=0,
        rank=0,
        samples=1,
        step_ms=10,
        compute_ms=8,
        comm_ms=4,
        exposed_ms=2,
        hidden_ms=2,
        comm_overlap=0.5,
        ids=8,
        overlapped_ids=2,
        id_overlap=0.25,
        collectives=collectives,
    )


def _gradient(exposed_ms: float) -> CollectiveReport:
    return CollectiveReport(
        name=CollectiveName.GRADIENT,
        partition=Partition.OL,
        bytes_sent=100,
        bytes_received=100,
        ms=4,
        exposed_ms=exposed_ms,
    )


def _rank(rank: int, ours: Sequence[float], theirs: Sequence[float]) -> RankRecord:
    """Step times of two turns of one step each."""
    blocks = [
        Block(turn=turn, contestant=OURS.name, step_ms=(ms,), reports=(_report(_gradient(2.0)),))
        for turn, ms in enumerate(ours)
    ]
    blocks += [Block(turn=turn, contestant=THEIRS.name, step_ms=(ms,)) for turn, ms in enumerate(theirs)]
    timeline = StepTimeline(
        contestant=OURS.name,
        step_ms=10,
        spans=(
            Span(lane="compute", name="forward", begin_ms=0, end_ms=6),
            Span(lane=WAIT, name="ol gradient", begin_ms=6, end_ms=8),
            Span(lane=LINK, name="ol gradient", begin_ms=4, end_ms=8),
            Span(lane="a lane of tomorrow", name="backward", begin_ms=8, end_ms=10),
        ),
    )
    return RankRecord(rank=rank, blocks=tuple(blocks), timelines=(timeline,), unable={}, unequal={})


RANKS = [_rank(0, [10, 20], [40, 40]), _rank(1, [12, 18], [20, 80])]


def _record(**changes: object) -> ScenarioRecord:
    record = ScenarioRecord(
        scenario=Scenario(),
        outcomes=(Outcome.of(OURS, RANKS), Outcome.of(THEIRS, RANKS)),
        unable={"TorchRec PEC": "RuntimeError: no CUDA"},
        unequal={OURS.name: ()},
        communication_ms=5.0,
        timelines=RANKS[0].timelines,
    )
    return record.model_copy(update=changes)


def test_a_turn_counts_with_its_slowest_rank() -> None:
    assert Outcome.of(OURS, RANKS).blocks_ms == (12, 20)
    assert Outcome.of(THEIRS, RANKS).blocks_ms == (40, 80)


def test_a_block_counts_with_its_median_step() -> None:
    blocks = tuple(Block(turn=turn, contestant=OURS.name, step_ms=(1, 2, 90)) for turn in range(2))
    rank = RankRecord(rank=0, blocks=blocks, timelines=(), unable={}, unequal={})
    assert Outcome.of(OURS, [rank]).median_ms == 2


def test_collectives_are_means_over_all_steps() -> None:
    """A step in which a collective was not in flight counts with nothing."""
    blocks = (
        Block(turn=0, contestant=OURS.name, step_ms=(1,), reports=(_report(_gradient(3.0)),)),
        Block(turn=1, contestant=OURS.name, step_ms=(1,), reports=(_report(),)),
    )
    rank = RankRecord(rank=0, blocks=blocks, timelines=(), unable={}, unequal={})
    outcome = Outcome.of(OURS, [rank])
    assert [(each.name, each.partition, each.exposed_ms) for each in outcome.collectives] == [("gradient", "ol", 1.5)]
    assert outcome.id_overlap == 0.25


def test_ratios_pair_the_sides_of_each_turn() -> None:
    ratio = _record().ratio(OURS.name, THEIRS.name)
    assert ratio is not None
    assert ratio.median == pytest.approx((12 / 40 + 20 / 80) / 2)


def test_the_result_says_what_did_not_run_and_what_was_compared() -> None:
    made = result("name", [_record()], None)
    assert made.reached is True
    text = table(made.scenarios[0])
    assert "does not run: RuntimeError: no CUDA" in text
    assert "same bits" in text


def test_different_bits_miss_the_target() -> None:
    record = _record(unequal={OURS.name: ("model.weight",)})
    assert result("name", [record], None).reached is False
    assert "DIFFERS in model.weight" in table(record)


def test_nothing_compared_is_no_success() -> None:
    assert result("name", [_record(unequal={})], None).reached is None


class PageIn(PipelinesResult):
    """Writes its page to a folder of the test."""

    folder: Path

    @property
    def page(self) -> Path:
        return self.folder / "page.svg"


def test_the_page_names_pipelines_collectives_and_limits(tmp_path: Path) -> None:
    made = result("name", [_record(), _record()], None)
    page.draw(PageIn.model_validate({**made.model_dump(), "folder": tmp_path}))
    text = (tmp_path / "page.svg").read_text(encoding="utf-8")
    for name in ("prioritized", "TorchRec SparseDist", "communication only", "ol gradient", "one step on rank 0"):
        assert name in text


def test_a_result_survives_its_file() -> None:
    made = result("name", [_record()], None)
    assert PipelinesResult.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("text", "contestant"),
    [
        ("a=sync", Contestant(name="a", family=Family.OVERLANE, pipeline="sync")),
        (
            "b=prioritized,transport=gloo,sharder.use_index_dedup=true,pipeline.new=false",
            Contestant(
                name="b",
                family=Family.OVERLANE,
                pipeline="prioritized",
                transport=Transport.GLOO,
                sharder_options={"use_index_dedup": True},
                pipeline_options={"new": False},
            ),
        ),
    ],
)
def test_variants_are_parsed(text: str, contestant: Contestant) -> None:
    assert Contestant.parse(text) == contestant


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=", "=sync", "a=sync,transport=tcp", "a=sync,precision=int8", "a=sync,sharder.x=1", "a=sync,x=true"],
)
def test_other_variants_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="variant"):
        Contestant.parse(text)


@pytest.mark.parametrize(
    "arguments", [["--rate", "fast"], ["--nodes", "9"], ["--only", "nobody"], ["--variant", "a"], ["--turns", "1"]]
)
def test_bad_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_standard_contestants_have_names_of_their_own() -> None:
    assert len({each.name for each in STANDARD}) == len(STANDARD)


def test_a_link_carries_frames() -> None:
    assert communication_ms(62_500, 62_500) == FRAMING
    assert 1.04 < FRAMING < 1.05


def test_the_figures_of_prioritized_are_set_against_the_limits_and_sync() -> None:
    sync = OURS.model_copy(update={"name": "sync"})
    compute = OURS.model_copy(update={"name": "compute only"})
    ours = Outcome.of(OURS, RANKS).model_copy(update={"median_ms": 20.0})
    exposed = ours.collectives[0].model_copy(update={"exposed_ms": 40.0})
    record = _record(
        outcomes=(
            ours,
            ours.model_copy(update={"contestant": sync, "collectives": (exposed,)}),
            ours.model_copy(update={"contestant": compute, "median_ms": 16.0}),
        ),
        stages=tuple(
            StageTime(contestant=OURS.name, stage=stage, ms=0.2) for stage in ("overlap", "partition", "lookup")
        ),
    )
    found = {each.name.partition("prioritized")[2]: each.value for each in result("made up", [record], None).figures}
    assert found[" / larger of compute only and communication only"] == 1.25
    assert found[", exposed embedding communication less than sync's by"] == 0.95
    assert found[", exposed communication less than sync's by"] == 0.95
    assert found[", overlap detection, share of the step"] == pytest.approx(0.02)


def test_phases_within_phases_are_left_out() -> None:
    outer = Span(lane="compute", name="forward", begin_ms=0, end_ms=5)
    inner = Span(lane="compute", name="lookup", begin_ms=1, end_ms=2)
    wait = Span(lane=WAIT, name="lookup", begin_ms=1, end_ms=2)
    flights = [Span(lane=LINK, name="a2a", begin_ms=1, end_ms=end) for end in (4, 3)]
    assert set(outermost([inner, outer, wait, *flights])) == {outer, wait, *flights}


def test_what_others_take_is_a_share_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert OthersTime(wall_s=20, used_s=9).share(OthersTime(wall_s=10, used_s=5)) == pytest.approx(0.2)


def test_others_are_all_but_the_ranks_with_their_ended_children() -> None:
    stats = [
        f"{pid} (a (b) c) S {parent} 0 0 0 0 0 0 0 0 0 1 2 3 4 20 0 1 0 77"
        for pid, parent in ((10, 1), (11, 5), (12, 5), (13, 10))
    ]
    assert used_s(stats, without_parent=5) * TICKS_PER_S == 20
