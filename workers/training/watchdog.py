"""Notices that this rank has stopped moving, and says where.

A rank that hangs makes all others wait for it. Those are left in peace here: their collectives end by the timeout of
the process group, which is longer, so that the rank that hangs is the one that is named.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Protocol, Self

from pipeline.executor import Running

# Code in which a rank waits for others: that they are late is not its own fault. For its checkpoint to be written it
# waits with a limit of its own.
_WAITING = (
    "torch.distributed",
    "torch.futures",
    "torchrec.distributed",
    "pipeline.runtime",
    "ray.",
    "workers.training.checkpoint",
)


class HungError(Exception):
    """The rank has not moved for too long. `stack` says where it stands, as a traceback does."""

    def __init__(self, message: str, stack: str) -> None:
        super().__init__(message)
        self.stack = stack

    def __reduce__(self) -> tuple[type["HungError"], tuple[str, str]]:
        return HungError, (str(self), self.stack)


class Follows(Protocol):
    """What the watchdog knows of a pipeline."""

    @property
    def running(self) -> Running | None:
        """The stage at work and its batch."""
        ...


class Watchdog:
    """Watches the thread that makes it, as soon as there is a pipeline to follow: what comes before may take long.

    `tell` gets a `HungError` and where the thread was, once and from a thread of the watchdog's, when the training has
    not moved for `limit_s` seconds.
    """

    def __init__(self, limit_s: float, tell: Callable[[HungError, str], None]) -> None:
        self._limit_s, self._tell = limit_s, tell
        self._watched = threading.get_ident()
        self._phase, self._beats = "starting", 0
        self._pipe: Follows | None = None
        self._first_step = 0
        self._moved_s, self._seen = time.monotonic(), self._state()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    @property
    def where(self) -> str:
        """What the training is at, or was at when it failed."""
        running = self._pipe.running if self._pipe is not None else None
        if running is None:
            return self._phase
        return f"stage {running.stage} of step {self._first_step + running.batch}"

    def follow(self, pipe: Follows, first_step: int) -> None:
        """Name the stages of this pipeline from now on; its first batch is step `first_step` of the job."""
        self._pipe, self._first_step = pipe, first_step

    def enter(self, phase: str) -> None:
        """The training has come to this."""
        self._phase = phase
        self.beat()

    def beat(self) -> None:
        """The training moves."""
        self._beats += 1

    def look(self, now_s: float) -> bool:
        """Look at the watched thread at this moment. Says whether it hangs; then that has been told."""
        state = self._state()
        frame = sys._current_frames().get(self._watched)
        if state != self._seen or self._pipe is None or frame is None or _waits_for_others(frame):
            self._moved_s, self._seen = now_s, state
        elif now_s - self._moved_s > self._limit_s:
            stack = "".join(traceback.format_stack(frame))
            self._tell(HungError(f"no progress for {self._limit_s:g} s", stack), self.where)
            return True
        return False

    def _watch(self) -> None:
        while not self._closing.wait(min(1.0, self._limit_s / 10)):
            if self.look(time.monotonic()):
                return

    def _state(self) -> tuple[int, Running | None]:
        return self._beats, self._pipe.running if self._pipe is not None else None


def _waits_for_others(frame: FrameType) -> bool:
    # Whoever waits with the means of `threading` is meant, and not these.
    while _module(frame) == "threading" and frame.f_back is not None:
        frame = frame.f_back
    return _module(frame).startswith(_WAITING)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
