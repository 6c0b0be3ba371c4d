"""Server-sent events, read apart by hand, and clients that follow a job within the process."""

import asyncio
from dataclasses import dataclass

from service.security.roles import NO_TOKENS
from service.telemetry.feeds import Feeds


@dataclass(frozen=True)
class Event:
    """One event as it stands in the stream; a heartbeat is a comment alone."""

    name: str | None = None
    data: str | None = None
    id: str | None = None
    comment: str | None = None


def events_in(text: str) -> list[Event]:
    """The events of a stream that ends after a whole one."""
    assert text == "" or text.endswith("\n\n"), f"cut off within an event: {text[-80:]!r}"
    found = []
    for block in text.split("\n\n")[:-1]:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            assert name not in fields, f"twice {name!r} in one event"
            fields[name] = value
        found.append(Event(fields.get("event"), fields.get("data"), fields.get("id"), fields.get("")))
    return found


def numbers(events: list[Event]) -> list[int]:
    """The ids of the changes of state."""
    return [int(event.id) for event in events if event.id is not None]


class Follower:
    """A client that takes what comes, or only what it is told to take."""

    def __init__(self, feeds: Feeds, job_id: str, after: int = 0) -> None:
        self._stream = feeds.follow(NO_TOKENS, job_id, after)
        self._task: asyncio.Task[None] | None = None
        self._came = asyncio.Event()
        self.text = ""

    @property
    def events(self) -> list[Event]:
        return events_in(self.text)

    async def take(self) -> bool:
        """Take one piece; false if there is none any more."""
        piece = await anext(self._stream, None)
        self.text += "" if piece is None else piece.decode()
        self._came.set()
        return piece is not None

    def go(self) -> None:
        """Take everything from now on, in the background."""
        self._task = asyncio.create_task(self._take_all())

    async def until(self, word: str) -> None:
        """Wait until this has come."""
        while word not in self.text:
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), 20)

    async def done(self) -> list[Event]:
        """Wait for the end of the stream; all that came."""
        assert self._task is not None
        await asyncio.wait_for(self._task, 20)
        return self.events

    async def leave(self) -> None:
        """Go away in the middle of the stream, as a client does whose connection breaks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._stream.aclose()

    async def _take_all(self) -> None:
        while await self.take():
            pass
