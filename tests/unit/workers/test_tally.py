"""Running totals: progress by complete steps, and means without the warm-up."""

import io

import pytest
from rich.console import Console

from pipeline.report import CollectiveName, Partition
from tests.unit.workers.samples import sample
from workers import terminal
from workers.reports import JobPlan, JobResult, ShardedTable
from workers.telemetry.tally import Tally

PLAN = JobPlan(steps=20, world_size=2, prioritized={}, not_prioritized={})
RESULT = JobResult(
    steps=20, samples=320, seconds=1.0, loss=0.25, metrics={"auc": None}, checkpoint="/runs/[1]", bad_rows=3
)


def test_a_step_counts_as_done_when_every_rank_has_reported_it() -> None:
    tally = Tally()
    tally.add([sample(0), sample(1, loss=0.4)], world_size=2)
    assert tally.progress is None
    tally.add([sample(0, rank=1), sample(1, rank=1, loss=0.2)], world_size=2)
    assert tally.progress is not None
    assert tally.progress.step == 2
    assert tally.progress.loss == pytest.approx(0.3)
    assert tally.progress.samples_per_s == pytest.approx(1600)
    assert tally.progress.comm_overlap == pytest.approx(0.75)


def test_steps_that_stay_incomplete_are_forgotten() -> None:
    tally = Tally()
    tally.add([sample(step) for step in range(100)], world_size=2)
    tally.add([sample(99, rank=1)], world_size=2)
    assert not tally._incomplete


def test_a_rank_that_reports_nothing_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.telemetry.tally._MAX_INCOMPLETE", 5)
    tally = Tally()
    tally.add([sample(step) for step in range(20)], world_size=2)
    assert [step for _, step in tally._incomplete] == [15, 16, 17, 18, 19]


def test_every_attempt_warms_up() -> None:
    tally = Tally()
    tally.add([sample(step) for step in range(12)], world_size=1)
    tally.add([sample(step, step_ms=1000.0, attempt=1) for step in range(10, 13)], world_size=1)
    tally.add([sample(13, attempt=1)], world_size=1)
    assert (tally.summary().totals.step_ms, tally.summary().totals.rank_steps) == (100, 10)


def test_the_first_steps_are_warm_up_in_a_long_run_only() -> None:
    slow = [sample(step, step_ms=1000.0) for step in range(3)]
    tally = Tally()
    tally.add(slow, world_size=1)
    assert (tally.summary().totals.step_ms, tally.summary().warmup_steps) == (3000, 0)
    tally.add([sample(step) for step in range(3, 20)], world_size=1)
    summary = tally.summary()
    assert (summary.totals.step_ms, summary.totals.rank_steps, summary.warmup_steps) == (170, 17, 3)
    assert summary.totals.collectives[CollectiveName.EMBEDDING, Partition.OL].comm_overlap == pytest.approx(0.75)
    assert summary.totals.overlapped_ids == 17 * 5


def test_a_schedule_that_looks_for_no_overlap_reports_none() -> None:
    tally = Tally()
    tally.add([sample(0, overlapped_ids=None, id_overlap=None)], world_size=1)
    assert tally.summary().totals.overlapped_ids is None


def test_the_number_of_ranks_may_change_from_attempt_to_attempt() -> None:
    tally = Tally()
    for rank in range(3):
        tally.add([sample(step, rank) for step in range(10)], world_size=3)
    tally.add([sample(6, attempt=1, samples=20, step_ms=20.0)], world_size=2)
    assert tally.progress is not None
    assert (tally.progress.attempt, tally.progress.ranks, tally.progress.step) == (0, 3, 10)
    tally.add([sample(6, rank=1, attempt=1, samples=20, step_ms=20.0)], world_size=2)
    assert (tally.progress.attempt, tally.progress.ranks, tally.progress.step) == (1, 2, 7)
    assert tally.progress.samples_per_s == pytest.approx(2000), "of this attempt alone"
    assert (tally.first_step(0), tally.first_step(1), tally.first_step(2)) == (0, 6, None)


def test_no_step_is_complete_while_nobody_knows_how_many_ranks_there_are() -> None:
    tally = Tally()
    tally.add([sample(0), sample(1)], world_size=None)
    tally.add([sample(0, rank=1)], world_size=None)
    assert tally.progress is None
    tally.add([sample(1, rank=1)], world_size=2)
    assert tally.progress is not None
    assert tally.progress.step == 2


def test_a_tally_that_was_lost_is_added_to_the_one_that_comes_after() -> None:
    lost, after, whole = Tally(), Tally(), Tally()
    for tally, steps in ((lost, range(8)), (after, range(8, 20)), (whole, range(20))):
        for rank in range(2):
            tally.add([sample(step, rank, loss=1 / (step + 1)) for step in steps], world_size=2)
    lost.add([sample(8)], world_size=2)
    memory = lost.snapshot()
    lost.add([sample(9)], world_size=2)
    after.recall(memory)
    summary, wanted = after.summary(), whole.summary()
    # What came before the memory did is taken for the start of the attempt: its three steps of two ranks are left out.
    assert summary.totals.rank_steps == wanted.totals.rank_steps - 3 * 2 + 1
    assert summary.totals.comm.comm_overlap == pytest.approx(0.75)
    assert (summary.first_loss, summary.last_loss) == (wanted.first_loss, wanted.last_loss)
    assert (after.first_step(0), after.progress) == (0, whole.progress)


def test_a_snapshot_is_not_changed_by_what_comes_after() -> None:
    tally = Tally()
    tally.add([sample(0)], world_size=1)
    memory = tally.snapshot()
    tally.add([sample(1)], world_size=1)
    assert memory.summary().totals.rank_steps == 1
    assert memory.summary().totals.collectives[CollectiveName.EMBEDDING, Partition.OL].bytes_sent == 100
    assert memory.progress is not None
    assert memory.progress.step == 1


def test_the_progress_line_says_how_far_and_how_fast() -> None:
    tally = Tally()
    tally.add([sample(9)], world_size=1)
    assert tally.progress is not None
    figures = terminal.progress_figures(tally.progress, left_s=40.4, dropped=3)
    assert terminal.progress_line(tally.progress, 20, figures) == (
        "step 10/20 (50 %)  loss 0.5000  10 ms/step  800 samples/s  comm overlap 75.0 %  40 s left  3 samples dropped"
    )
    assert terminal.progress_line(tally.progress, None, "...") == "step 10  ..."


@pytest.mark.parametrize(
    ("left_s", "shown"),
    [(119, "119 s"), (120, "2 min"), (3600, "60 min"), (7199, "2 h 00 min"), (11_100, "3 h 05 min")],
)
def test_long_times_are_not_shown_in_seconds(left_s: float, shown: str) -> None:
    tally = Tally()
    tally.add([sample(9)], world_size=1)
    assert tally.progress is not None
    assert terminal.progress_figures(tally.progress, left_s, 0).endswith(f"  {shown} left")


def test_the_plan_shows_where_the_tables_lie() -> None:
    out = Console(file=io.StringIO(), width=120)
    tables = [
        ShardedTable(name=name, module="embeddings", rows=262_144, dim=4, sharding="row_wise", ranks=ranks)
        for name, ranks in (("user", (0, 1, 2)), ("item", (0, 2)), ("shop", (1,)))
    ]
    terminal.show_plan(out, PLAN.model_copy(update={"sharding": tuple(tables)}))
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert "20 steps on 2 ranks" in shown
    for name, ranks in (("user", "0-2"), ("item", "0, 2"), ("shop", "1")):
        (line,) = (line for line in shown.splitlines() if name in line)
        assert [cell.strip() for cell in line.split("│")[1:-1]] == [
            *(name, "embeddings", "row_wise", ranks, "262,144", "4", "4.0")
        ]


def test_the_table_shows_means_per_rank_step() -> None:
    tally = Tally()
    tally.add([sample(step) for step in range(20)], world_size=1)
    out = Console(width=120, record=True, file=io.StringIO())
    terminal.show_result(out, "job-1", RESULT, tally.summary())
    text = out.export_text()
    (row,) = [line for line in text.splitlines() if "embedding OL" in line]
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == ["embedding OL", "4.00", "1.00", "75.0 %", "0.1"]
    assert "20 steps, 320 samples in 1.0 s; loss 0.5000 at first, 0.2500 at last" in text
    assert "id overlap: 25.0 %" in text
    assert "held-out auc: -" in text
    assert "bad rows left out: 3; the log names the first ones" in text
    assert "checkpoint: /runs/[1]" in text
