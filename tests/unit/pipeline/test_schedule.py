"""The schedule tables and their three checks: what they accept, and above all what they reject."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import schedules
from pipeline.__main__ import main
from pipeline.checks import Violation, check, check_happens_before, check_replay, check_static
from pipeline.drawing import COLUMNS, draw, draw_violations
from pipeline.schedule import Lane, Need, Schedule, Stage, TableRows, stage
from pipeline.simulator import Load, durations, simulate

PRIORITIZED = schedules.PRIORITIZED


def changed(schedule: Schedule, name: str, change: Callable[[Stage], Stage]) -> Schedule:
    stages = tuple(change(each) if each.name == name else each for each in schedule.stages)
    return Schedule("changed", stages)


def moved(schedule: Schedule, name: str, below: str) -> Schedule:
    rest = [each for each in schedule.stages if each.name != name]
    place = [each.name for each in rest].index(below) + 1
    return Schedule("moved", (*rest[:place], schedule[name], *rest[place:]))


def without_need(schedule: Schedule, name: str, need: str) -> Schedule:
    dropped = Need.parse(need)
    assert dropped in schedule[name].needs
    return changed(
        schedule, name, lambda each: replace(each, needs=tuple(other for other in each.needs if other != dropped))
    )


@pytest.mark.parametrize("schedule", schedules.ALL.values(), ids=list(schedules.ALL))
def test_the_schedules_pass(schedule: Schedule) -> None:
    assert check(schedule) == []


def test_nol_lookup_before_the_nol_apply_it_depends_on_is_rejected() -> None:
    early = moved(PRIORITIZED, "nol_lookup", below="partition")
    [static] = check_static(early)
    assert (static.stage, static.reason) == ("nol_lookup", "nol_apply(-2) is issued below it in the same step")
    [replay] = check_replay(early)
    assert replay.stage == "nol_lookup"
    assert "misses" in replay.reason


def test_nol_lookup_two_steps_ahead_is_rejected() -> None:
    early = changed(PRIORITIZED, "nol_lookup", lambda each: replace(each, skew=-2))
    assert any(found.stage == "nol_lookup" for found in check_static(early))
    assert check_replay(early)[0].stage == "nol_lookup"


def test_ol_one_batch_early_is_rejected() -> None:
    early = changed(PRIORITIZED, "ol_lookup", lambda each: replace(each, skew=-2))
    assert any(found.stage == "ol_lookup" and "ol_apply(-1)" in found.reason for found in check_static(early))
    assert check_replay(early)[0].stage == "ol_lookup"


def test_ol_early_by_its_order_alone_is_found_by_replay_alone() -> None:
    """Without the need there is nothing for the static check to see; the rows still tell."""
    early = moved(PRIORITIZED, "ol_lookup", below="backward")
    forgotten = without_need(without_need(early, "ol_lookup", "ol_apply(-1)"), "ol_lookup", "overlap")
    assert check_static(forgotten) == []
    assert check_replay(forgotten)[0].stage == "ol_lookup"


ORDERING_NEEDS = [
    ("ol_lookup", "ol_apply(-1)"),
    ("nol_lookup", "nol_apply(-2)"),
    ("ol_embedding_a2a", "ol_lookup"),
    ("nol_embedding_a2a", "nol_lookup"),
    ("forward", "ol_embedding_a2a"),
    ("forward", "nol_embedding_a2a"),
    ("backward", "forward"),
    ("ol_gradient_a2a", "backward"),
    ("nol_gradient_a2a", "backward"),
    ("ol_apply", "ol_gradient_a2a"),
    ("nol_apply", "nol_gradient_a2a"),
]


@pytest.mark.parametrize(("consumer", "need"), ORDERING_NEEDS)
def test_a_dropped_need_is_found_by_happens_before_alone(consumer: str, need: str) -> None:
    dropped = without_need(PRIORITIZED, consumer, need)
    assert check_static(dropped) == []
    assert check_replay(dropped) == []
    assert check_happens_before(dropped) != []


def test_deferring_all_gradients_is_stale() -> None:
    """The tempting shortcut: apply the whole gradient one step late."""
    late = changed(schedules.SYNC, "apply", lambda each: replace(each, skew=1))
    [found] = check_replay(late)
    assert found == Violation("replay", "lookup", 1, found.reason)
    assert "misses [0]" in found.reason


def test_stages_are_moved_only_as_far_as_the_checks_allow() -> None:
    in_place, early, late, both = ([each.name for each in table.stages] for table in PRIORITIZED.variants)
    assert in_place == [each.name for each in PRIORITIZED.stages]
    ol = ["ol_apply", "ol_lookup", "ol_embedding_a2a"]
    nol = ["nol_apply", "nol_lookup", "nol_embedding_a2a"]
    for names in (early, both):
        assert names[names.index("weight_gradients") - 3 :][:3] == ol
    for names in (late, both):
        assert names[names.index("backward") + 1 :][:3] == nol
    too_late = changed(PRIORITIZED, "receive", lambda each: replace(each, during="forward"))
    assert {found.check for found in check(too_late)} == {"static"}
    assert any(found.stage == "overlap" and "receive is issued below" in found.reason for found in check(too_late))
    too_early = changed(PRIORITIZED, "dense_allreduce", lambda each: replace(each, during="ol_gradient_a2a"))
    assert any("weight_gradients is issued below it" in found.reason for found in check(too_early))


@pytest.mark.parametrize(
    ("stage", "during", "reason"),
    [
        ("nol_apply", "nowhere", "nol_apply runs during nowhere, but there is no such stage"),
        ("nol_apply", "nol_apply", "nol_apply runs during nol_apply, but there is no such stage"),
        ("nol_apply", "optimizer", "nol_lookup uses rows while nol_apply may be moved"),
        ("nol_embedding_a2a", "input_splits", "nol_embedding_a2a may overtake input_splits on some ranks only"),
    ],
)
def test_a_stage_moves_past_nothing_that_it_could_disturb(stage: str, during: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        changed(PRIORITIZED, stage, lambda each: replace(each, during=during))


def test_gradients_that_are_never_applied_are_found() -> None:
    [found] = check_replay(_without(PRIORITIZED, "nol_apply"))
    assert "misses" in found.reason
    [found] = check_replay(_without(PRIORITIZED, "nol_apply"), batches=1)
    assert "never gets the update of batch 0" in found.reason


def _without(schedule: Schedule, name: str) -> Schedule:
    return Schedule(
        "without",
        tuple(
            replace(each, needs=tuple(need for need in each.needs if need.stage != name))
            for each in schedule.stages
            if each.name != name
        ),
    )


@pytest.mark.parametrize("text", ["overlap(1)", "overlap(+0)", "0overlap", "overlap(+1)garbage", "", "overlap (+1)"])
def test_a_need_is_read_strictly(text: str) -> None:
    with pytest.raises(ValueError, match="expected 'stage'"):
        Need.parse(text)


def test_a_table_names_its_stages_once_and_needs_only_those() -> None:
    with pytest.raises(ValueError, match="'a' stands there twice"):
        Schedule("twice", (stage("a", Lane.COMPUTE, 0), stage("a", Lane.COMPUTE, 0)))
    with pytest.raises(ValueError, match="b needs c, but there is no such stage"):
        Schedule("unknown", (stage("b", Lane.COMPUTE, 0, "c"),))
    with pytest.raises(ValueError, match="choose one of sync, sparse_dist, prioritized"):
        schedules.get("fast")


def test_rows_are_chosen_relative_to_the_neighbours() -> None:
    rows = [frozenset({1, 2}), frozenset({2, 3}), frozenset({3, 4})]

    def rows_of(batch: int) -> frozenset[int]:
        return rows[batch] if 0 <= batch < 3 else frozenset()

    assert TableRows.OL_WITH_PREVIOUS.select(rows_of, 1) == {2}
    assert TableRows.NOL_WITH_PREVIOUS.select(rows_of, 1) == {3}
    assert TableRows.OL_WITH_NEXT.select(rows_of, 1) == {3}
    assert TableRows.NOL_WITH_NEXT.select(rows_of, 1) == {2}
    assert TableRows.NOL_WITH_NEXT.select(rows_of, 2) == {3, 4}


def test_an_output_is_kept_until_its_last_reader() -> None:
    assert PRIORITIZED.last_use["receive"] == 1
    assert PRIORITIZED.last_use["backward"] == 1
    assert PRIORITIZED.last_use["nol_lookup"] == -1
    assert (PRIORITIZED.lead, PRIORITIZED.lag) == (2, 1)


@pytest.mark.parametrize("schedule", schedules.ALL.values(), ids=list(schedules.ALL))
def test_the_drawing_fits_a_terminal(schedule: Schedule) -> None:
    lines = draw(schedule).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert [line.split()[0] for line in lines if not line.startswith(" ")][1:] == [
        each.name for each in schedule.stages
    ]


def test_a_wrong_row_is_marked_in_the_drawing() -> None:
    early = moved(PRIORITIZED, "nol_lookup", below="partition")
    drawing = draw_violations(early, check(early))
    assert any(line.startswith("nol_lookup") and line.endswith("<-- static") for line in drawing.splitlines())
    assert "issued below it in the same step" in drawing


def test_the_simulator_hides_what_the_schedule_lets_it_hide() -> None:
    load = Load(compute_ms=60, comm_ms=40, id_overlap=0.1)
    by_name = {name: simulate(each, durations(each, load)) for name, each in schedules.ALL.items()}
    assert by_name["sync"].step_ms > by_name["sparse_dist"].step_ms > by_name["prioritized"].step_ms
    assert by_name["prioritized"].exposed_ms < 0.1 * by_name["sync"].exposed_ms
    assert by_name["prioritized"].step_ms >= 60


def test_in_the_simulation_a_stage_runs_during_another_as_soon_as_its_needs_are_met() -> None:
    load = Load(id_overlap=0.3)
    spans = {str(each.event): each for each in simulate(PRIORITIZED, durations(PRIORITIZED, load)).spans}
    for moved_stage, need, during in (
        ("ol_apply(5)", "ol_gradient_a2a(5)", "weight_gradients(5)"),
        ("nol_apply(5)", "nol_gradient_a2a(5)", "backward(6)"),
    ):
        assert spans[moved_stage].begin_ms == spans[need].end_ms
        assert spans[during].begin_ms < spans[moved_stage].begin_ms
        assert spans[moved_stage].end_ms < spans[during].end_ms
        worked = spans[during].end_ms - spans[during].begin_ms
        assert worked > durations(PRIORITIZED, load)[spans[during].event.stage.name]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "prioritized"]) == 0
    assert "nol_gradient_a2a" in capsys.readouterr().out
    assert main(["check", "prioritized"]) == 0
    assert main(["simulate", "prioritized", "--id-overlap", "0.3"]) == 0
    assert "exposed_ms" in capsys.readouterr().out
    for wrong in (["show", "fast"], ["simulate", "sync", "--id-overlap", "2"], []):
        with pytest.raises(SystemExit) as stopped:
            main(wrong)
        assert stopped.value.code == 2


def test_the_readme_shows_the_schedule_as_it_is() -> None:
    readme = Path(__file__).parents[3] / "README.md"
    assert draw(PRIORITIZED) in readme.read_text(encoding="utf-8")
