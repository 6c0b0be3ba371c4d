"""How a run ends that is told to stop: it saves first, if that does not take too long.

Ray Train answers a SIGINT by ending the worker group. Here the first one asks the ranks to save and to end by
themselves; a second one, or the end of the time that they have, leaves it to Ray Train.
"""

import itertools
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from ray.train.torch import TorchTrainer
from rich.console import Console

from workers.reports import JobStop

_ASK_EVERY_S = 1.0
_ANSWER_WITHIN_S = 5.0

Handler = Callable[[int, FrameType | None], Any]


class Asks(Protocol):
    """The way to the ranks. See `MonitorKeeper`."""

    def stop(self, timeout_s: float) -> bool | None:
        """Tell the ranks to save and to end. False if there is nothing to save, None if nobody heard it."""
        ...


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


class Stopping:
    """Answers SIGINT for as long as a run trains, which is the context that this is. Saving may take `grace_s` seconds.

    `interrupt` makes the main thread call `handle` once more.
    """

    def __init__(
        self, out: Console, ranks: Asks, grace_s: float, interrupt: Callable[[], None] = _interrupt_main_thread
    ) -> None:
        self._out, self._ranks, self._grace_s, self._interrupt = out, ranks, grace_s, interrupt
        self._abort: Handler | None = None
        self._signals = itertools.count()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._aborts = False
        self._problem: str | None = None

    @property
    def unsaved(self) -> JobStop:
        """What to tell of a run that was ended before it had saved."""
        return JobStop(problem=self._problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def take_over(self, abort: Handler) -> None:
        """From now on SIGINT comes here. `abort` is Ray Train's own answer to it."""
        self._abort = abort
        signal.signal(signal.SIGINT, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Answer a signal. One that comes when the run has trained is ignored: the run is about to end."""
        if self._ended.is_set():
            return
        # In one step, since the next signal may come in the middle of this.
        first = next(self._signals) == 0
        if first and self._grace_s > 0:
            self._out.print(
                f"stopping: saves first, for {self._grace_s:g} s at most; interrupt again to end it at once"
            )
            thread = threading.Thread(target=self._save, name="stopping", daemon=True)
            thread.start()
            self._thread = thread
            return
        if not self._aborts:
            self._give_up("told to end at once" if self._grace_s > 0 else "checkpoint.stop_grace_s is 0")
        assert self._abort is not None
        self._abort(number, frame)

    def _save(self) -> None:
        """Ask the ranks until the training ends. Interrupt it if there is nothing to save, or it takes too long."""
        end_s = time.monotonic() + self._grace_s
        while (left_s := end_s - time.monotonic()) > 0:
            if self._ranks.stop(min(left_s, _ANSWER_WITHIN_S)) is False:
                self._give_up(None)
                break
            # Asked again all the same: a monitor that Ray has to start again does not know of it.
            if self._ended.wait(min(left_s, _ASK_EVERY_S)):
                return
        else:
            self._give_up(f"there was no checkpoint within checkpoint.stop_grace_s={self._grace_s:g}")
        self._interrupt()

    def _give_up(self, problem: str | None) -> None:
        if not self._aborts:
            self._aborts, self._problem = True, problem


class StoppableTrainer(TorchTrainer):  # type: ignore[misc]  # Ray has no types
    """A trainer whose run `stopping` ends."""

    def __init__(self, stopping: Stopping, **options: Any) -> None:
        super().__init__(**options)
        self._stopping = stopping

    def _register_sigint_handler(self, controller: Any) -> None:
        super()._register_sigint_handler(controller)
        abort = signal.getsignal(signal.SIGINT)
        assert callable(abort)
        self._stopping.take_over(abort)
