"""From the monitor's outbox to the control plane, over HTTP, for as long as it takes.

The control plane may be away for a while, so a batch that could not be delivered is tried again, slower and slower. It
stores samples by (job, rank, step), so delivering a batch twice does no harm.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum, auto

import httpx
import structlog

from workers.reports import ReportBatch
from workers.telemetry.outbox import Outbox

log = structlog.get_logger(__name__)


class Answer(Enum):
    """What the control plane made of a batch."""

    STORED = auto()
    AWAY = auto()
    REFUSED = auto()
    UNKNOWN_JOB = auto()


class Delivery:
    """Delivers an outbox to `POST {url}/internal/v1/jobs/{job_id}/reports`, one batch at a time."""

    # Ranks send on the same beat: what comes within a moment goes out together, and not too often.
    gather_s = 0.25
    pace_s = 1.0

    def __init__(
        self,
        outbox: Outbox,
        client: httpx.AsyncClient,
        job_id: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        batch: int = 500,
    ) -> None:
        self._outbox, self._client, self._sleep, self._batch = outbox, client, sleep, batch
        self._path = f"/internal/v1/jobs/{job_id}/reports"

    async def drain(self) -> bool:
        """Deliver until the outbox is empty. False if the control plane does not want this job's reports (any more)."""
        while (batch := self._outbox.take(self._batch)) is not None:
            match await self._deliver(batch):
                case Answer.REFUSED:
                    self._outbox.give_up(batch)
                case Answer.UNKNOWN_JOB:
                    self._outbox.close()
                    return False
        return True

    async def _deliver(self, batch: ReportBatch) -> Answer:
        pause_s = 0.25
        while (answer := await self._post(batch)) is Answer.AWAY:
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)
        return answer

    async def _post(self, batch: ReportBatch) -> Answer:
        try:
            response = await self._client.post(
                self._path, content=batch.model_dump_json(), headers={"Content-Type": "application/json"}
            )
        except httpx.RequestError as error:
            log.debug("the control plane cannot be reached", error=str(error))
            return Answer.AWAY
        status = response.status_code
        if response.is_success:
            return Answer.STORED
        if status >= 500 or status in (408, 429):
            return Answer.AWAY
        log.error("the control plane refuses the reports", status=status, answer=response.text[:500])
        return Answer.UNKNOWN_JOB if status in (401, 403, 404) else Answer.REFUSED
