"""The clock that the samples of all ranks are put on: the monitor's. Clocks of several nodes differ.

A rank asks the monitor for its time, as NTP does. The answer was given somewhere between question and arrival, so the
middle of the two is off by half the round trip at most, however unequal the two ways are. Of several exchanges the one
with the shortest round trip is taken.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ClockOffset:
    """What to add to a rank's clock to get the monitor's; the truth lies within `uncertainty_ms` of `offset_ms`."""

    offset_ms: float
    uncertainty_ms: float


class MonitorClock:
    """A rank's estimate of how far the monitor's clock is from its own, renewed every `every_s` seconds.

    `read` asks the monitor for its time, in seconds since the epoch. It is given a time in seconds in which to answer,
    and raises if it does not. While the monitor is away the last estimate stays; before there is one, every `refresh`
    asks again.
    """

    def __init__(
        self,
        read: Callable[[float], float],
        *,
        every_s: float = 60.0,
        retry_s: float = 10.0,
        tries: int = 8,
        timeout_s: float = 1.0,
        first_timeout_s: float = 3.0,
        wall_s: Callable[[], float] = time.time,
        elapsed_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._read, self._wall_s, self._elapsed_s = read, wall_s, elapsed_s
        self._every_s, self._retry_s, self._tries = every_s, retry_s, tries
        # The first answer takes longest: the monitor's process and the connection to it may be new.
        self._timeout_s, self._first_timeout_s = timeout_s, first_timeout_s
        self._offset: ClockOffset | None = None
        self._due_s: float | None = None
        self._away = False

    @property
    def offset(self) -> ClockOffset | None:
        """The last estimate; None as long as the monitor has never answered."""
        return self._offset

    def expire(self) -> None:
        """Measure again at the next call of `refresh`: the monitor may be on another node now."""
        self._due_s = None

    def refresh(self) -> None:
        """Measure if it is due. Blocks for some round trips, so the training thread stays away from it."""
        now_s = self._elapsed_s()
        if self._due_s is not None and now_s < self._due_s:
            return
        best = self._measure()
        if best is not None:
            self._offset = best
        if self._offset is not None:
            self._due_s = self._elapsed_s() + (self._retry_s if best is None else self._every_s)

    def _measure(self) -> ClockOffset | None:
        best: ClockOffset | None = None
        try:
            for _ in range(self._tries):
                offset = self._exchange()
                if best is None or offset.uncertainty_ms < best.uncertainty_ms:
                    best = offset
        except Exception as error:
            # Telemetry never stops training, and a clock that is a little off is the least of its losses.
            if best is None and not self._away:
                stays = "none is known" if self._offset is None else f"{self._offset.offset_ms:.3f} ms stays"
                log.warning("the monitor's clock cannot be read", offset=stays, error=str(error))
        self._away = best is None
        return best

    def _exchange(self) -> ClockOffset:
        asked_at_s, asked_s = self._wall_s(), self._elapsed_s()
        theirs_s = self._read(self._first_timeout_s if self._offset is None else self._timeout_s)
        half_s = (self._elapsed_s() - asked_s) / 2
        return ClockOffset(offset_ms=1e3 * (theirs_s - asked_at_s - half_s), uncertainty_ms=1e3 * half_s)
