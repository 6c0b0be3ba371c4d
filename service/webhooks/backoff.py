"""When a message that was not taken is sent again."""

from collections.abc import Callable
from datetime import timedelta

_FIRST = timedelta(seconds=5)
_LONGEST = timedelta(hours=4)
_FACTOR = 4
_JITTER = 0.2

MOST_ATTEMPTS = 13
"""After so many, about 26 hours after the first, a message is given up."""

SCHEDULE = timedelta(hours=32)
"""No message that was tried in time waits longer than this."""


def pause_after(attempts: int, chance: Callable[[], float]) -> timedelta | None:
    """How long to wait after so many attempts, the last of which failed; None: no longer.

    `chance` gives numbers from 0 to 1, which spread out what has failed together.
    """
    if attempts >= MOST_ATTEMPTS:
        return None
    plain: timedelta = min(_LONGEST, _FIRST * _FACTOR ** (attempts - 1))
    return plain * (1 + _JITTER * (2 * chance() - 1))
