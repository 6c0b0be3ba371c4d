"""The events of one job for all who follow it: encoded once and kept once, however many there are.

A follower is no more than a position in the feed. So none can hold up another or take memory by being slow: one that
has fallen further behind than the feed keeps is cut off, and comes back with the id of the last event it has seen.
"""

import asyncio
from collections import deque
from enum import StrEnum
from itertools import islice

from fastapi.sse import format_sse_event

from service.models import LatestStep, StateChange

KEPT = 256
"""So many events a follower may be behind."""

_DELETED = "deleted"


class EventName(StrEnum):
    """The kinds of events. Only `state` has ids: they are what a follower resumes at."""

    STATE = "state"
    STEP = "step"
    END = "end"


class TooSlowError(Exception):
    """A follower is further behind than the feed keeps."""


class Feed:
    """Events in the order in which they were found. For one event loop, and one who writes."""

    def __init__(self, kept: int = KEPT) -> None:
        self._recent: deque[bytes] = deque(maxlen=kept)
        self._count = 0
        self._changes: list[tuple[int, bytes]] = []
        self._step: LatestStep | None = None
        self._last_step = self._end = b""
        self._open = asyncio.Event()
        self._news = asyncio.Event()

    @property
    def last_number(self) -> int:
        """The number of the newest change of state; 0 before the first."""
        return self._changes[-1][0] if self._changes else 0

    @property
    def count(self) -> int:
        """How many events there were so far, heartbeats included."""
        return self._count

    def open(self) -> None:
        """What there was when the feed began has been added; followers may begin."""
        self._open.set()

    def change(self, change: StateChange) -> None:
        """The job has changed its state."""
        event = format_sse_event(event=EventName.STATE, id=str(change.number), data_str=change.model_dump_json())
        self._changes.append((change.number, event))
        self._add(event)

    def step(self, latest: LatestStep) -> None:
        """What the newest step is now; adds nothing if it was the same before."""
        if latest != self._step:
            self._step = latest
            self._last_step = format_sse_event(event=EventName.STEP, data_str=latest.model_dump_json())
            self._add(self._last_step)

    def beat(self) -> None:
        """A comment, which keeps connections open on which nothing else is sent."""
        self._add(format_sse_event(comment="nothing new"))

    def end(self, state: str | None) -> None:
        """Nothing comes any more: the job has ended in this state, or None: it was deleted."""
        self._end = format_sse_event(event=EventName.END, data_str=state or _DELETED)
        self._add(self._end)

    async def begin(self, after: int) -> tuple[bytes, int]:
        """What a follower who knows the changes up to number `after` is sent first, and its position then."""
        await self._open.wait()
        missed = [event for number, event in self._changes if number > after]
        return b"".join([*missed, self._last_step, self._end]), self._count

    async def next(self, position: int) -> tuple[bytes, int]:
        """Wait for what comes after `position`; nothing once the feed has ended. Raises `TooSlowError`."""
        while position == self._count:
            if self._end:
                return b"", position
            await self._news.wait()
        missing = self._count - position
        if missing > len(self._recent):
            raise TooSlowError
        return b"".join(islice(self._recent, len(self._recent) - missing, None)), self._count

    def _add(self, event: bytes) -> None:
        self._recent.append(event)
        self._count += 1
        self._news.set()
        self._news = asyncio.Event()
