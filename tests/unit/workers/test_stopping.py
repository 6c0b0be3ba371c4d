"""A run that is told to stop, without Ray: when it is left to save, and when it is ended."""

import io
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from workers.reports import JobStop
from workers.stopping import Stopping

PATIENCE_S = 60.0


@dataclass
class FakeRanks:
    """Answers that all, or the first of a run, get; `asked` says that there was a question."""

    answer: bool | None = True
    first: list[bool | None] = field(default_factory=list)
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def stop(self, timeout_s: float) -> bool | None:
        self.asked.release()
        return self.first.pop(0) if self.first else self.answer

    def heard(self, times: int) -> None:
        for _ in range(times):
            assert self.asked.acquire(timeout=PATIENCE_S)


@dataclass
class Run:
    """A run in training, and what became of it."""

    ranks: FakeRanks
    stopping: Stopping
    out: io.StringIO
    aborted: threading.Event


Starts = Callable[..., Run]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    monkeypatch.setattr("workers.stopping._ASK_EVERY_S", 0.01)
    before = signal.getsignal(signal.SIGINT)

    def start(grace_s: float = PATIENCE_S, ranks: FakeRanks | None = None) -> Run:
        ranks, out, aborted = ranks or FakeRanks(), io.StringIO(), threading.Event()
        stopping = Stopping(
            Console(file=out, soft_wrap=True), ranks, grace_s, lambda: stopping.handle(signal.SIGINT, None)
        )
        stopping.take_over(lambda *_: aborted.set())
        return Run(ranks, stopping, out, aborted)

    yield start
    signal.signal(signal.SIGINT, before)


def test_a_signal_asks_the_ranks_to_save_until_they_have(starts: Starts) -> None:
    run = starts()
    with run.stopping:
        signal.raise_signal(signal.SIGINT)
        # Again and again: a monitor may have been started again meanwhile.
        run.ranks.heard(3)
    assert not run.aborted.is_set()
    assert run.out.getvalue() == "stopping: saves first, for 60 s at most; interrupt again to end it at once\n"


def test_a_second_signal_ends_the_run_at_once(starts: Starts) -> None:
    run = starts()
    with run.stopping:
        signal.raise_signal(signal.SIGINT)
        run.ranks.heard(1)
        signal.raise_signal(signal.SIGINT)
        assert run.aborted.is_set()
    assert run.stopping.unsaved == JobStop(problem="told to end at once")


def test_a_second_signal_may_come_while_the_first_is_answered(starts: Starts) -> None:
    class Impatient(io.StringIO):
        def write(self, text: str) -> int:
            signal.raise_signal(signal.SIGINT)
            return super().write(text)

    run = starts()
    run.stopping._out = Console(file=Impatient(), soft_wrap=True)
    with run.stopping:
        signal.raise_signal(signal.SIGINT)
        assert run.aborted.is_set()


def test_ranks_that_do_not_save_in_time_are_ended(starts: Starts) -> None:
    run = starts(grace_s=0.05)
    with run.stopping:
        signal.raise_signal(signal.SIGINT)
        assert run.aborted.wait(PATIENCE_S)
    problem = "there was no checkpoint within checkpoint.stop_grace_s=0.05"
    assert run.stopping.unsaved == JobStop(problem=problem)
    assert run.stopping.unsaved.in_words() == f"not saved: {problem}"


def test_a_run_without_a_step_has_nothing_to_save(starts: Starts) -> None:
    run = starts(ranks=FakeRanks(answer=False))
    with run.stopping:
        signal.raise_signal(signal.SIGINT)
        assert run.aborted.wait(PATIENCE_S)
    assert run.stopping.unsaved == JobStop()
    assert run.stopping.unsaved.in_words() is None


def test_a_monitor_that_does_not_answer_is_asked_again(starts: Starts) -> None:
    run = starts(ranks=FakeRanks(first=[None, None]))
    with run.stopping:
        signal.raise_signal(signal.SIGINT)
        run.ranks.heard(4)
    assert not run.aborted.is_set()


def test_without_grace_a_run_ends_at_once(starts: Starts) -> None:
    run = starts(grace_s=0)
    with run.stopping:
        signal.raise_signal(signal.SIGINT)
        assert run.aborted.is_set()
    assert not run.ranks.asked.acquire(blocking=False)
    assert run.stopping.unsaved == JobStop(problem="checkpoint.stop_grace_s is 0")


def test_a_signal_after_the_training_changes_nothing(starts: Starts) -> None:
    run = starts()
    with run.stopping:
        pass
    signal.raise_signal(signal.SIGINT)
    assert not run.aborted.is_set()
    assert not run.ranks.asked.acquire(blocking=False)
