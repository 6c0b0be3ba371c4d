"""Moments that all ranks have in common without talking about them: the beats of the wall clock.

A step takes as long as its slowest rank. Work that every rank does once in a while therefore costs the run once if all
do it in the same step, and once per rank if each does it in a step of its own. Clocks of a cluster agree within
milliseconds, and where they do not, nothing but this saving is lost.
"""

import time
from collections.abc import Callable


class Beat:
    """Beats every `every_s` seconds, `after_s` after the full multiples of it."""

    def __init__(self, every_s: float, after_s: float = 0.0, clock_s: Callable[[], float] = time.time) -> None:
        self._every_s, self._after_s, self._clock_s = every_s, after_s, clock_s
        self._last = self._count()

    def passed(self) -> bool:
        """Whether it has beaten since the last time that this said so."""
        count = self._count()
        passed, self._last = count != self._last, count
        return passed

    def wait_s(self) -> float:
        """Seconds until the next beat."""
        return self._every_s - (self._clock_s() - self._after_s) % self._every_s

    def _count(self) -> int:
        return int((self._clock_s() - self._after_s) // self._every_s)
