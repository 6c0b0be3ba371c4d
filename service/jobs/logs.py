"""The logs of jobs: from Ray while a job is alive, from a kept copy once it has ended (Ray's own go with its head)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from service.cluster.gateway import RayGateway, RayUnavailableError
from service.models import JobState

log = structlog.get_logger(__name__)

_FOLLOW_PAUSE_S = 1.0


@dataclass(frozen=True)
class LogPart:
    """A part of a log, and the byte offset of what comes after it."""

    content: bytes
    next_offset: int


class LogReader:
    """Reads the logs of jobs by byte offset."""

    def __init__(self, folder: Path, gateway: RayGateway) -> None:
        self._folder = folder
        self._gateway = gateway

    async def keep(self, job_id: str) -> None:
        """Copy the whole log of a job that runs no more; a copy stays if Ray does not know the job by now.

        A log that cannot be had must not keep the job from ending.
        """
        try:
            text = await self._gateway.logs(job_id)
            if text is not None or not self._path(job_id).exists():
                await asyncio.to_thread(self._write, job_id, text or "")
        except (RayUnavailableError, OSError) as error:
            log.error("job_log_not_kept", job_id=job_id, error=str(error))

    async def read(self, job_id: str, offset: int) -> LogPart:
        """Everything from `offset` on. Raises `RayUnavailableError` if there is no copy and Ray does not answer."""
        kept = self._path(job_id)
        if kept.exists():
            whole = await asyncio.to_thread(kept.read_bytes)
        else:
            whole = (await self._gateway.logs(job_id) or "").encode()
        content = whole[offset:]
        return LogPart(content, min(offset, len(whole)) + len(content))

    async def follow(
        self, job_id: str, offset: int, state: Callable[[], Awaitable[JobState | None]]
    ) -> AsyncIterator[LogPart]:
        """Whole lines as they come, until the job has ended or is deleted; an empty part when nothing is new."""
        while True:
            now = await state()
            if now is None:
                return
            part = await self.read(job_id, offset)
            content = part.content if now.ended else part.content[: part.content.rfind(b"\n") + 1]
            offset += len(content)
            yield LogPart(content, offset)
            if now.ended:
                return
            await asyncio.sleep(_FOLLOW_PAUSE_S)

    def forget(self, job_id: str) -> None:
        """Delete the copy of a deleted job."""
        self._path(job_id).unlink(missing_ok=True)

    def _path(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.log"

    def _write(self, job_id: str, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(job_id)
        partial = path.with_suffix(".partial")
        partial.write_bytes(text.encode())
        partial.replace(path)
