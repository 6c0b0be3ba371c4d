"""What is kept of jobs that ended long ago: nothing is taken away unless the settings say so.

Steps are archived in an order in which nothing is lost wherever the service dies: first the samples of a job are
frozen, then the archive's file is written as a whole, then the samples are deleted. A job is removed from the outside
in, and its row, by which it is found, goes last.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import pyarrow as pa
import structlog

from service.archive import StepArchive
from service.jobs.logs import LogReader
from service.settings import Settings
from service.store.database import Database
from service.store.engine import DatabaseUnavailableError
from service.store.retention import RetentionStore
from service.store.steps import StepStore

log = structlog.get_logger(__name__)

_PAUSE_S = 600.0
_PAGE = 2000


class Retention:
    """Archives and removes what is older than the settings allow. `now` is the time by which age is told."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        archive: StepArchive,
        logs: LogReader,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._store, self._steps = RetentionStore(database), StepStore(database)
        self._archive, self._logs = archive, logs
        self._now = now

    async def run(self) -> None:
        """Run until cancelled; at once if there is nothing to do ever. An error is logged and tried again later."""
        while self._settings.archive_steps_after_days or self._settings.remove_jobs_after_days:
            try:
                await self.run_once()
            except DatabaseUnavailableError as error:
                log.warning("retention_waits_for_the_database", error=str(error))
            except Exception:
                log.exception("retention_failed")
            await asyncio.sleep(_PAUSE_S)

    async def run_once(self) -> None:
        """Archive and remove what is due. What one job's files refuse holds up no other job."""
        if (days := self._settings.archive_steps_after_days) is not None:
            for job_id in await self._store.with_steps(self._now() - timedelta(days=days)):
                await self._try(self._archive_steps, job_id)
        if (days := self._settings.remove_jobs_after_days) is not None:
            for job_id in await self._store.ended(self._now() - timedelta(days=days)):
                await self._try(self._remove, job_id)

    async def _try(self, action: Callable[[str], Awaitable[None]], job_id: str) -> None:
        try:
            await action(job_id)
        except (OSError, pa.ArrowException) as error:
            log.error("job_stays_in_the_database", job_id=job_id, error=str(error))

    async def _archive_steps(self, job_id: str) -> None:
        await self._store.freeze_steps(job_id, self._now())
        # A file that is there is whole: some of its samples may be deleted already.
        if not self._archive.path(job_id).exists():
            with self._archive.writing(job_id) as file:
                last = -1
                while page := await self._steps.page(job_id, last, None, None, _PAGE):
                    await asyncio.to_thread(file.add, page)
                    last = page[-1].step
        while await self._store.delete_some_steps(job_id):
            pass
        log.info("job_steps_archived", job_id=job_id, file=str(self._archive.path(job_id)))

    async def _remove(self, job_id: str) -> None:
        storage = self._settings.storage / job_id
        if storage.exists():
            await asyncio.to_thread(shutil.rmtree, storage)
        self._logs.forget(job_id)
        self._archive.forget(job_id)
        while await self._store.delete_some_steps(job_id):
            pass
        await self._store.delete_job(job_id)
        log.info("job_removed", job_id=job_id)
