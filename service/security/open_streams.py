"""A stream goes on for days; it must not outlive the token that opened it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Send

from service.problems import Problem
from service.security.access import Access
from service.store.engine import DatabaseUnavailableError

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 1.0
"""So long a stream may go on after its token was taken away, and the time of one look at the others."""


@dataclass(eq=False)
class _Open:
    """A stream: how to ask again for what it was admitted with, and when it ends if that is refused."""

    admit: Callable[[], Awaitable[object]]
    limit: asyncio.Timeout
    version: object = ()


class OpenStreams:
    """All streams that are open. Each is admitted again when the tokens file has changed, and ended if it is not."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._open: set[_Open] = set()

    @contextmanager
    def watched(self, admit: Callable[[], Awaitable[object]], limit: asyncio.Timeout) -> Iterator[None]:
        """Within the block `limit` expires when `admit` raises `Problem`."""
        stream = _Open(admit, limit)
        self._open.add(stream)
        try:
            yield
        finally:
            self._open.discard(stream)

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("streams_not_checked")
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """End the streams that would not be opened any more."""
        if not self._open:
            return
        version = self._access.version
        # A stream that is new was admitted at a time that is not known here.
        for stream in [each for each in self._open if each.version != version]:
            if await self._is_refused(stream) and stream in self._open:
                stream.limit.reschedule(asyncio.get_running_loop().time())
            stream.version = version

    async def _is_refused(self, stream: _Open) -> bool:
        try:
            await stream.admit()
        except Problem as refusal:
            log.info("stream_ended", why=refusal.detail)
            return True
        except DatabaseUnavailableError as error:
            # Whoever may go on comes back with the id of the last event.
            log.info("stream_ended", why=str(error))
            return True
        return False


class GuardedStream(StreamingResponse):
    """Sends what `content` gives until that ends, or until `admit`, which let the request in, raises `Problem`."""

    def __init__(
        self,
        content: AsyncGenerator[bytes, None],
        streams: OpenStreams,
        admit: Callable[[], Awaitable[object]],
        **options: Any,
    ) -> None:
        super().__init__(content, **options)
        self._content, self._streams, self._admit = content, streams, admit

    async def stream_response(self, send: Send) -> None:
        """Send the answer."""
        try:
            async with asyncio.timeout(None) as limit:
                with self._streams.watched(self._admit, limit):
                    await super().stream_response(send)
        except TimeoutError:
            if not limit.expired():
                raise
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            # It may have been left between two of its parts.
            await self._content.aclose()
