"""Lets any number of clients follow the events of a job, with one reader of the database for each job."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

import structlog

from service.jobs.reasons import readable
from service.security.roles import Caller
from service.store.engine import DatabaseUnavailableError
from service.store.events import EventStore
from service.store.jobs import JobStore
from service.telemetry.feed import Feed, TooSlowError
from service.telemetry.reports import Telemetry

log = structlog.get_logger(__name__)

_PAUSE_S = 1.0
# After so many rounds without an event comes a heartbeat.
_QUIET_ROUNDS = 15


@dataclass
class _Followed:
    """A job that somebody follows."""

    feed: Feed
    reader: asyncio.Task[None]
    followers: int = 0


class Feeds:
    """The feeds of the jobs that are being followed; a job that nobody follows costs nothing."""

    def __init__(self, jobs: JobStore, events: EventStore, telemetry: Telemetry) -> None:
        self._jobs, self._events, self._telemetry = jobs, events, telemetry
        self._followed: dict[str, _Followed] = {}

    @property
    def followers(self) -> dict[str, int]:
        """How many follow each job."""
        return {job_id: followed.followers for job_id, followed in self._followed.items()}

    async def follow(self, caller: Caller, job_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Server-sent events of a job for this caller, from the change of state after number `after` on, up to its end.

        Ends early for a client that is too slow; it finds the rest when it comes back with the last id.
        """
        followed = self._join(job_id)
        try:
            events, position = await followed.feed.begin(after)
            yield _readable(events, caller)
            while True:
                events, position = await followed.feed.next(position)
                if not events:
                    return
                yield _readable(events, caller)
        except TooSlowError:
            log.info("follower_cut_off", job_id=job_id)
        finally:
            self._leave(job_id, followed)

    async def close(self) -> None:
        """End all readers."""
        readers = [followed.reader for followed in self._followed.values()]
        for reader in readers:
            reader.cancel()
        for reader in readers:
            with suppress(asyncio.CancelledError):
                await reader

    def _join(self, job_id: str) -> _Followed:
        followed = self._followed.get(job_id)
        if followed is None:
            feed = Feed()
            followed = _Followed(feed, asyncio.create_task(self._read(job_id, feed), name=f"events of {job_id}"))
            self._followed[job_id] = followed
        followed.followers += 1
        return followed

    def _leave(self, job_id: str, followed: _Followed) -> None:
        followed.followers -= 1
        if followed.followers == 0:
            del self._followed[job_id]
            followed.reader.cancel()

    async def _read(self, job_id: str, feed: Feed) -> None:
        """Add what is new until the job has ended. A database that is away for a while only delays this."""
        seen = quiet = 0
        away = False
        while True:
            try:
                if await self._read_once(job_id, feed):
                    return
                away = False
            except DatabaseUnavailableError as error:
                if not away:
                    log.warning("events_wait_for_the_database", job_id=job_id, error=str(error))
                away = True
            except Exception:
                log.exception("events_not_read", job_id=job_id)
            quiet = quiet + 1 if feed.count == seen else 0
            if quiet == _QUIET_ROUNDS:
                feed.beat()
                quiet = 0
            seen = feed.count
            await asyncio.sleep(_PAUSE_S)

    async def _read_once(self, job_id: str, feed: Feed) -> bool:
        """Whether nothing can come any more."""
        # The job first: if it has ended by then, all its changes are there.
        record = await self._jobs.get(job_id)
        if record is None:
            feed.end(None)
        else:
            for change in await self._events.after(job_id, feed.last_number):
                feed.change(change)
            if (latest := await self._telemetry.latest(record)) is not None:
                feed.step(latest)
            if record.state.ended:
                feed.end(record.state)
        feed.open()
        return record is None or record.state.ended


def _readable(events: bytes, caller: Caller) -> bytes:
    """Whole events, with what of their reasons the caller may read."""
    return events if caller.sees_all else readable(events.decode(), caller).encode()
