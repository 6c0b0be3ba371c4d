"""The monitor without Ray: what it delivers, and how it ends."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from tests.unit.workers.samples import encoded
from workers.reports import ReportBatch
from workers.telemetry.delivery import Delivery
from workers.telemetry.monitor import Destination, Monitor


def drive(what: Callable[[Monitor], Awaitable[None]]) -> list[int]:
    """Steps that arrive while a coroutine drives a monitor; nothing may still run when it is through."""
    steps: list[int] = []

    def take(request: httpx.Request) -> httpx.Response:
        steps.extend(each.step for each in ReportBatch.model_validate_json(request.content).samples)
        return httpx.Response(204)

    async def run() -> None:
        monitor = Monitor("job-1", 1, Destination("http://service.test", "secret"))
        client = httpx.AsyncClient(base_url="http://service.test", transport=httpx.MockTransport(take))
        monitor._delivery = Delivery(monitor._outbox, client, "job-1")
        async with client:
            await what(monitor)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    return steps


def test_what_is_finished_leaves_nothing_running() -> None:
    async def finish(monitor: Monitor) -> None:
        await monitor.ingest(0, 0, encoded(0, 1), 0)
        assert await monitor.finish(10)

    assert drive(finish) == [0, 1]


def test_reports_that_come_after_a_finish_are_delivered_too() -> None:
    async def go_on(monitor: Monitor) -> None:
        for step in range(2):
            await monitor.ingest(0, 0, encoded(step), 0)
            assert await monitor.finish(10)

    assert drive(go_on) == [0, 1]


def test_no_proxy_stands_before_the_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    monitor = Monitor("job-1", 1, Destination("http://127.0.0.1:8420", "secret"))
    assert monitor._delivery is not None
    assert monitor._delivery._client._mounts == {}
