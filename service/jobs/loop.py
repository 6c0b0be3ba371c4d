"""Calls the reconciler in the background."""

import asyncio
import time
from contextlib import suppress

import structlog

from service.jobs.reconciler import Reconciler
from service.store.engine import DatabaseUnavailableError

log = structlog.get_logger(__name__)


class ReconcilerLoop:
    """Calls the reconciler again and again in the background, and at once when poked."""

    def __init__(self, reconciler: Reconciler, pause_s: float = 0.5) -> None:
        self._reconciler = reconciler
        self._pause_s = pause_s
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """Something happened that the reconciler should look at."""
        self._poked.set()

    async def run(self) -> None:
        """Run until cancelled. An error is logged and the next round tries again.

        Rounds over a long queue take at most half of the time, however often somebody pokes.
        """
        away = False
        while True:
            self._poked.clear()
            began = time.monotonic()
            try:
                await self._reconciler.run_once()
                away = False
            except DatabaseUnavailableError as error:
                if not away:
                    log.warning("reconciler_waits_for_the_database", error=str(error))
                away = True
            except Exception:
                log.exception("reconciler_failed")
            await asyncio.sleep(min(time.monotonic() - began, self._pause_s))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), self._pause_s)
