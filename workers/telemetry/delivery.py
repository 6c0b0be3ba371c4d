"""From the monitor to the control plane: a bounded outbox, and its delivery over HTTP for as long as it takes.

The control plane may be away for a while, so a batch that could not be delivered is tried again, slower and slower. It
stores samples by (job, rank, step), so delivering a batch twice does no harm.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum, auto

import httpx
import structlog

from workers.reports import JobFailure, JobPlan, JobResult, ReportBatch, StepSample

log = structlog.get_logger(__name__)


class Answer(Enum):
    """What the control plane made of a batch."""

    STORED = auto()
    AWAY = auto()
    REFUSED = auto()
    UNKNOWN_JOB = auto()


class Outbox:
    """Reports that wait for delivery. Beyond `capacity` samples the oldest are given up, and counted."""

    def __init__(self, capacity: int = 50_000) -> None:
        self._capacity = capacity
        self._samples: deque[StepSample] = deque()
        self._plan: JobPlan | None = None
        self._result: JobResult | None = None
        self._failure: JobFailure | None = None
        self._dropped_by_rank: dict[tuple[int, int], int] = {}
        self._dropped_here = 0
        self._dropped_told = 0
        self._open = True

    @property
    def dropped(self) -> int:
        """Samples given up so far, by the ranks and here."""
        return sum(self._dropped_by_rank.values()) + self._dropped_here

    def add_samples(self, rank: int, attempt: int, samples: list[StepSample], dropped: int) -> None:
        """Take samples of a rank, and the number that it has given up in this attempt so far."""
        self._dropped_by_rank[attempt, rank] = dropped
        if not self._open:
            return
        self._samples.extend(samples)
        while len(self._samples) > self._capacity:
            self._samples.popleft()
            self._dropped_here += 1

    def add(self, report: JobPlan | JobResult | JobFailure) -> None:
        """Take a plan, a result or a failure."""
        match report:
            case JobPlan():
                self._plan = report
            case JobResult():
                self._result = report
            case JobFailure():
                self._failure = report

    def close(self) -> None:
        """Keep no reports from now on: nobody wants them."""
        self._open = False
        self._samples.clear()

    def give_up(self, batch: ReportBatch) -> None:
        """Count the samples of a batch that will not be delivered."""
        self._dropped_here += len(batch.samples)

    def take(self, limit: int) -> ReportBatch | None:
        """The next batch, with `limit` samples at most; None if there is nothing to tell."""
        dropped = self.dropped
        if not self._open:
            return None
        if not (self._samples or self._plan or self._result or self._failure) and dropped == self._dropped_told:
            return None
        samples = [self._samples.popleft() for _ in range(min(limit, len(self._samples)))]
        # A result must not overtake the steps that led to it: the control plane may take it for the end.
        last = not self._samples
        batch = ReportBatch(
            samples=samples,
            dropped=dropped,
            plan=self._plan,
            result=self._result if last else None,
            failure=self._failure if last else None,
        )
        self._dropped_told, self._plan = dropped, None
        if last:
            self._result = self._failure = None
        return batch


class Delivery:
    """Delivers an outbox to `POST {url}/internal/v1/jobs/{job_id}/reports`, one batch at a time."""

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
