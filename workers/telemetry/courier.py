"""Takes the reports in the outbox to where they go, in the background: at its own pace, or at once when asked to."""

import asyncio
from contextlib import suppress
from typing import Protocol

_MANY = 10_000


class Target(Protocol):
    """Where reports go.

    They are gathered for `gather_s` seconds after the first one, and `pace_s` seconds pass after they have gone out.
    """

    gather_s: float
    pace_s: float

    async def drain(self) -> bool:
        """Empty the outbox. False if nobody wants the reports of this job any more."""
        ...


class Courier:
    """Drains a target whenever there is news. It starts with the first news: only then does an event loop run."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._news, self._hurry, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._dismissed = False

    def wake(self, waiting: int) -> None:
        """There is news, with `waiting` samples in the outbox. Many of them are taken away at once."""
        if self._dismissed:
            return
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        if waiting >= _MANY:
            self._hurry.set()
        self._idle.clear()
        self._news.set()

    async def finish(self, timeout_s: float) -> bool:
        """Go at once, and wait until everything is delivered, `timeout_s` at most. Says whether it was."""
        self._hurry.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        if self._task is not None:
            # The actor ends soon, and asyncio would complain about a task that still waits then.
            self._task.cancel()
            self._task = None
        return True

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            await self._pause(self._target.gather_s)
            self._news.clear()
            self._hurry.clear()
            wanted = await self._target.drain()
            self._idle.set()
            if not wanted:
                self._dismissed = True
                return
            await self._pause(self._target.pace_s)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
