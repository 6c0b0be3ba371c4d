"""What a run says while it goes on: everything once, and how long the rest takes by the clock on the wall."""

import io
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console

from workers.following import Follower, Pace
from workers.job import parse_job
from workers.reports import JobPlan
from workers.telemetry.outbox import Outbox
from workers.telemetry.status import Memory, Status, Trouble
from workers.telemetry.tally import Progress, Tally

JOB = parse_job({"name": "tiny", "workers": {"count": 2}, "retries": {"max": 2}})
PLAN = JobPlan(steps=1000, world_size=2, prioritized={"embeddings": "row_wise"}, not_prioritized={})
MEMORY = Memory("one", 0, None, Tally(), Outbox().accounts(), 0, None)


def progress(step: int, attempt: int = 0) -> Progress:
    return Progress(attempt, 2, step, loss=0.5, step_ms=10.0, samples_per_s=800.0, comm_overlap=0.75)


def status(**changes: Any) -> Status:
    first: dict[str, Any] = {"attempt": 0, "first_step": None, "plan": None, "progress": None, "dropped": 0}
    return Status(**{**first, "trouble": None, "memory": MEMORY, **changes})


@dataclass
class Screen:
    """A follower, what it printed, and the clock that it goes by."""

    redraws: bool = False
    now_s: float = 0.0
    printed: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        out = Console(file=self.printed, force_terminal=self.redraws, width=160, color_system=None)
        self.follower = Follower(out, JOB, clock_s=lambda: self.now_s)

    def lines(self, *seen: Status | None) -> list[str]:
        """What it says when it sees these, a second apart."""
        self.printed.seek(0)
        self.printed.truncate()
        for each in seen:
            self.follower.see(each)
            self.now_s += 1.0
        return self.printed.getvalue().splitlines()


def test_it_says_what_it_waits_for_and_what_will_run_once() -> None:
    screen = Screen()
    waiting = status(attempt=-1)
    assert screen.lines(waiting, waiting) == ["waiting for 2 workers to start"]
    assert screen.lines(status(), status(plan=PLAN), status(plan=PLAN)) == [
        "1000 steps on 2 ranks",
        "  prioritized: embeddings: row_wise",
    ]


def test_the_same_plan_of_another_attempt_is_not_shown_again_but_another_plan_is() -> None:
    screen = Screen()
    screen.lines(status(plan=PLAN))
    assert screen.lines(status(attempt=1, plan=PLAN.model_copy(update={"attempt": 1}))) == []
    smaller = PLAN.model_copy(update={"attempt": 2, "world_size": 1, "prioritized": {}})
    assert screen.lines(status(attempt=2, plan=smaller)) == ["1000 steps on 1 rank"]


def test_a_restart_says_what_failed_and_from_where_it_goes_on() -> None:
    screen = Screen()
    screen.lines(status(plan=PLAN, first_step=0, progress=progress(700)))
    failed = Trouble(1, 0, "rank 1 on node 10.0.0.2: OSError: gone")
    again = status(attempt=1, plan=PLAN, trouble=failed)
    assert screen.lines(status(plan=PLAN, trouble=failed), again) == [
        "attempt 1 failed: rank 1 on node 10.0.0.2: OSError: gone; starting again, 2 retries at most"
    ]
    going = status(attempt=1, plan=PLAN, trouble=failed, first_step=500)
    assert screen.lines(going, going) == ["attempt 2: from step 500"]


def test_the_failure_that_ends_the_job_is_left_to_its_end() -> None:
    screen = Screen()
    failures = [Trouble(number, number - 1, f"rank 0: {number}") for number in (1, 2, 3)]
    said = screen.lines(*(status(attempt=failed.attempt, trouble=failed) for failed in failures))
    assert [line.partition(";")[0] for line in said] == ["attempt 1 failed: rank 0: 1", "attempt 2 failed: rank 0: 2"]


def test_a_restart_that_is_no_retry_is_told_of_when_it_happens() -> None:
    """A preempted node, say, beyond all retries."""
    screen, third = Screen(), Trouble(3, 2, "rank 0: node gone")
    assert screen.lines(status(attempt=2, trouble=third)) == []
    said = screen.lines(status(attempt=3, trouble=third), status(attempt=3, trouble=third))
    assert [line.partition(";")[0] for line in said] == ["attempt 3 failed: rank 0: node gone"]


def test_a_run_that_goes_on_from_an_earlier_one_says_so() -> None:
    assert Screen().lines(status(first_step=40)) == ["attempt 1: from step 40"]
    assert Screen().lines(status(first_step=0)) == []


def test_a_monitor_that_does_not_answer_is_told_of_once() -> None:
    away, back = "the monitor does not answer; training goes on, and what it measures meanwhile may get lost", status()
    assert Screen().lines(None, None, back, back, None) == [away, "the monitor answers again", away]


def test_without_a_terminal_a_line_comes_every_few_seconds() -> None:
    screen = Screen()
    screen.lines(status(plan=PLAN))
    said = screen.lines(*(status(plan=PLAN, first_step=0, progress=progress(10 * second)) for second in range(1, 8)))
    figures = "loss 0.5000  10 ms/step  800 samples/s  comm overlap 75.0 %"
    assert said == [
        f"step 10/1000 (1 %)  {figures}",
        f"step 40/1000 (4 %)  {figures}  96 s left",
        f"step 70/1000 (7 %)  {figures}  93 s left",
    ]


def test_a_run_that_stands_still_repeats_no_line() -> None:
    screen = Screen()
    still = status(progress=progress(10), dropped=3)
    figures = "loss 0.5000  10 ms/step  800 samples/s  comm overlap 75.0 %  3 samples dropped"
    assert screen.lines(*[still] * 9) == [f"step 10  {figures}"]


def test_on_a_terminal_progress_is_a_bar_and_news_are_lines_above_it() -> None:
    screen = Screen(redraws=True)
    with screen.follower:
        screen.lines(status(plan=PLAN), status(plan=PLAN, progress=progress(250)))
        said = "\n".join(screen.lines(status(plan=PLAN, progress=progress(500))))
        assert screen.follower._bar is not None
        screen.follower._bar.refresh()
        drawn = screen.printed.getvalue()
    assert "step 500/1000 (50 %)" not in said, "a bar, and no line"
    assert re.search(r"step +500/1000", drawn)
    assert "50%" in drawn
    assert "comm overlap 75.0 %" in drawn


def test_the_rest_is_judged_by_the_wall_and_not_by_the_steps() -> None:
    """Steps of 10 ms, and as much again for what happens between them."""
    pace = Pace()
    assert pace.left_s(0.0, 1000) is None
    for report in range(5):
        pace.add(2.0 * report, 0, 100 * report + 100)
    assert pace.left_s(8.0, 1000) == pytest.approx(500 * 0.02)


def test_the_rest_grows_while_nothing_gets_done() -> None:
    pace = Pace()
    pace.add(0.0, 0, 100)
    pace.add(2.0, 0, 200)
    assert pace.left_s(2.0, 300) == pytest.approx(2.0)
    pace.add(6.0, 0, 200)
    assert pace.left_s(6.0, 300) == pytest.approx(6.0)


def test_a_restart_begins_anew() -> None:
    pace = Pace()
    pace.add(0.0, 0, 100)
    pace.add(2.0, 0, 700)
    pace.add(30.0, 1, 520)
    assert pace.left_s(30.0, 1000) is None
    pace.add(32.0, 1, 540)
    assert pace.left_s(32.0, 1000) == pytest.approx(46.0)


def test_only_the_last_minute_counts() -> None:
    pace = Pace(window_s=60.0)
    for second in range(0, 101, 10):
        pace.add(float(second), 0, second)
    for second in range(110, 301, 10):
        pace.add(float(second), 0, 100 + 5 * (second - 100))
    assert pace.left_s(300.0, 1600) == pytest.approx(100.0)
