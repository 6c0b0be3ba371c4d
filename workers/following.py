"""What a run shows while it goes on: what it waits for, what happened to it, and how far it is.

On a terminal that can redraw, progress is a bar; elsewhere (under `ray job submit`, in a file) a line every few
seconds. Nothing is said twice.
"""

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from workers import terminal
from workers.capacity import group_name
from workers.job import JobSpec
from workers.reports import JobPlan
from workers.telemetry.status import Status

_LINE_EVERY_S = 3.0


class Pace:
    """How long the rest takes by the clock on the wall: evaluations, checkpoints and waits between steps count too.

    Looks back over `window_s` seconds of the running attempt; another attempt begins anew.
    """

    def __init__(self, window_s: float = 60.0) -> None:
        self._window_s = window_s
        self._attempt = -1
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, at_s: float, attempt: int, step: int) -> None:
        """At this time `step` steps were done."""
        if attempt != self._attempt:
            self._attempt = attempt
            self._seen.clear()
        if not self._seen or self._seen[-1][1] != step:
            self._seen.append((at_s, step))
        while len(self._seen) > 2 and self._seen[1][0] <= at_s - self._window_s:
            self._seen.popleft()

    def left_s(self, at_s: float, steps: int) -> float | None:
        """Seconds until `steps` steps are done; None before the second report. It grows while nothing gets done."""
        if len(self._seen) < 2:
            return None
        (began_s, first), (_, last) = self._seen[0], self._seen[-1]
        return (steps - last) * (at_s - began_s) / (last - first)


class Follower:
    """Says what is new in each status of the monitor that it sees."""

    def __init__(self, out: Console, job: JobSpec, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._out, self._job, self._clock_s = out, job, clock_s
        self._pace = Pace()
        self._bar = _bar(out) if out.is_terminal else None
        self._task = self._bar.add_task("training", total=None, visible=False, figures="") if self._bar else None
        self._waited, self._away = False, False
        self._trouble, self._attempt = 0, 0
        self._plan: JobPlan | None = None
        self._line_step, self._line_at_s = -1, float("-inf")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def see(self, status: Status | None) -> None:
        """Say what is new. None stands for a monitor that does not answer."""
        if status is None:
            self._say_once_away()
            return
        if self._away:
            self._away = False
            self._say("the monitor answers again")
        if status.attempt < 0 and not self._waited:
            self._waited = True
            self._say(f"waiting for {group_name(self._job.workers)} to start")
        self._see_trouble(status)
        self._see_plan(status)
        self._see_attempt(status)
        self._see_progress(status)

    def _say(self, text: str) -> None:
        self._out.print(text, markup=False)

    def _say_once_away(self) -> None:
        if not self._away:
            self._away = True
            self._say("the monitor does not answer; training goes on, and what it measures meanwhile may get lost")

    def _see_trouble(self, status: Status) -> None:
        trouble, retries = status.trouble, self._job.retries.max
        if trouble is None or trouble.number <= self._trouble:
            return
        # The last one is the failure of the job, which stands at the end of all output. Preemptions are no retries, so
        # beyond those another attempt is sure only when it is there.
        if trouble.number <= retries or status.attempt > trouble.attempt:
            self._trouble = trouble.number
            again = f"starting again, {retries} {'retry' if retries == 1 else 'retries'} at most"
            self._say(f"attempt {trouble.attempt + 1} failed: {trouble.message}; {again}")

    def _see_plan(self, status: Status) -> None:
        if status.plan is None or status.plan == self._plan:
            return
        before, self._plan = self._plan, status.plan
        if before is None or before.model_copy(update={"attempt": status.plan.attempt}) != status.plan:
            terminal.show_plan(self._out, status.plan)

    def _see_attempt(self, status: Status) -> None:
        number = status.attempt + 1
        if status.first_step is None or number <= self._attempt:
            return
        self._attempt = number
        if number > 1 or status.first_step > 0:
            self._say(f"attempt {number}: from step {status.first_step}")

    def _see_progress(self, status: Status) -> None:
        progress, total = status.progress, self._plan.steps if self._plan else None
        if progress is None:
            return
        now_s = self._clock_s()
        self._pace.add(now_s, progress.attempt, progress.step)
        left_s = self._pace.left_s(now_s, total) if total is not None else None
        figures = terminal.progress_figures(progress, left_s, status.dropped)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total, completed=progress.step, visible=True, figures=figures)
            return
        if progress.step != self._line_step and now_s - self._line_at_s >= _LINE_EVERY_S:
            self._line_step, self._line_at_s = progress.step, now_s
            self._say(terminal.progress_line(progress, total, figures))


def _bar(out: Console) -> Bar:
    return Bar(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
        console=out,
        transient=True,
    )
