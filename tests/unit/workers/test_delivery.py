"""From the outbox to the control plane, with a control plane that is well, away, or does not want it."""

import asyncio
from collections.abc import Callable

import httpx

from tests.unit.workers.samples import sample
from workers.reports import JobFailure, JobPlan, JobResult, ReportBatch
from workers.telemetry.delivery import Delivery
from workers.telemetry.outbox import Outbox

PLAN = JobPlan(steps=3, world_size=2, prioritized={"embeddings": "row_wise"}, not_prioritized={})
RESULT = JobResult(steps=3, samples=24, seconds=1.0, loss=0.5, metrics={"auc": 0.7}, checkpoint=None)
Handler = Callable[[httpx.Request], httpx.Response]


def filled(steps: int) -> Outbox:
    outbox = Outbox()
    outbox.add_samples(0, 0, [sample(step) for step in range(steps)], steps)
    return outbox


def drain(outbox: Outbox, handler: Handler, batch: int = 2) -> tuple[bool, list[float]]:
    pauses: list[float] = []

    async def no_sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> bool:
        client = httpx.AsyncClient(
            base_url="http://service",
            headers={"Authorization": "Bearer secret"},
            transport=httpx.MockTransport(handler),
        )
        async with client:
            return await Delivery(outbox, client, "job-1", sleep=no_sleep, batch=batch).drain()

    return asyncio.run(run()), pauses


class Service:
    """Answers with the given statuses in turn, then with 204; None is a connection that cannot be made."""

    def __init__(self, *statuses: int | None) -> None:
        self.statuses = list(statuses)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        status = self.statuses.pop(0) if self.statuses else 204
        if status is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(status)

    @property
    def batches(self) -> list[ReportBatch]:
        return [ReportBatch.model_validate_json(request.content) for request in self.requests]


def test_everything_is_delivered_in_order_to_the_jobs_own_address() -> None:
    service, outbox = Service(), filled(5)
    outbox.add(PLAN)
    outbox.add(RESULT)
    assert drain(outbox, service) == (True, [])
    assert [[each.step for each in batch.samples] for batch in service.batches] == [[0, 1], [2, 3], [4]]
    request = service.requests[0]
    assert (request.method, request.url.path) == ("POST", "/internal/v1/jobs/job-1/reports")
    assert request.headers["Authorization"] == "Bearer secret"
    assert b'"time":"2026-01-01T00:00:00Z"' in request.content


def test_the_plan_comes_first_and_the_result_not_before_its_last_step() -> None:
    service, outbox = Service(), filled(5)
    outbox.add(RESULT)
    outbox.add(PLAN)
    drain(outbox, service)
    assert [batch.plan for batch in service.batches] == [PLAN, None, None]
    assert [batch.result for batch in service.batches] == [None, None, RESULT]


def test_a_failure_is_delivered_without_any_sample() -> None:
    service, outbox = Service(), Outbox()
    failure = JobFailure(message="rank 1: no", traceback="...")
    outbox.add(failure)
    drain(outbox, service)
    assert [batch.failure for batch in service.batches] == [failure]


def test_a_service_that_is_away_gets_the_same_batch_again_later_and_later() -> None:
    service = Service(None, None, 503, 502, 429, None, None)
    wanted, pauses = drain(filled(2), service)
    assert wanted
    assert pauses == [0.25, 0.5, 1, 2, 4, 5, 5]
    assert len({request.content for request in service.requests}) == 1


def test_an_answer_that_makes_no_sense_is_no_delivery() -> None:
    service = Service()

    def garbled(request: httpx.Request) -> httpx.Response:
        if not service.requests:
            service.requests.append(request)
            raise httpx.DecodingError("not gzip", request=request)
        return service(request)

    wanted, pauses = drain(filled(1), garbled)
    assert (wanted, pauses) == (True, [0.25])
    assert [[each.step for each in batch.samples] for batch in service.batches] == [[0], [0]]


def test_a_batch_that_is_refused_is_counted_and_the_next_one_tried() -> None:
    service, outbox = Service(422), filled(4)
    assert drain(outbox, service) == (True, [])
    assert [[each.step for each in batch.samples] for batch in service.batches] == [[0, 1], [2, 3]]
    assert service.batches[-1].dropped == 2


def test_a_service_that_does_not_know_the_job_is_left_in_peace() -> None:
    for status in (401, 404):
        service, outbox = Service(status), filled(4)
        assert drain(outbox, service) == (False, [])
        assert len(service.requests) == 1
        outbox.add_samples(0, 0, [sample(9)], 5)
        assert outbox.take(10) is None


def test_a_loss_that_is_not_finite_never_becomes_invalid_json() -> None:
    service, outbox = Service(), Outbox()
    outbox.add_samples(0, 0, [sample(loss=None)], 1)
    drain(outbox, service)
    assert b'"loss":null' in service.requests[0].content
