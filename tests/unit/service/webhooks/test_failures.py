"""Endpoints that fail, hang, or are gone: what is sent again, when, and what is given up."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.typing import EventDict

from service.services import Services
from service.store import webhooks as store
from service.store.engine import DatabaseUnavailableError
from service.webhooks import sender
from service.webhooks.backoff import MOST_ATTEMPTS, SCHEDULE
from service.webhooks.dispatcher import AT_ONCE, KEPT
from tests.unit.service.conftest import Plane
from tests.unit.service.webhooks.conftest import Pauses, finished, rows, send, shown
from tests.unit.service.webhooks.receiver import Receiver, receiving, webhooks_file

pytestmark = pytest.mark.anyio


async def test_what_is_not_taken_is_sent_again_for_about_a_day_and_then_given_up(
    plane: Plane, ops: Receiver, events: list[EventDict]
) -> None:
    ops.status = 503
    job_id = await plane.submit()
    began, pauses = plane.clock.time, []
    while (await shown(plane)).pending:
        [row] = await rows(plane)
        pauses.append((row["due_at"] - plane.clock.time).total_seconds())
        if pauses[-1] > 0:
            plane.clock.time = row["due_at"] - timedelta(milliseconds=1)
            await send(plane)
            assert len(ops.received) == len(pauses) - 1, "not before its time"
            plane.clock.time = row["due_at"]
        await send(plane)
        assert len(ops.received) == len(pauses) <= MOST_ATTEMPTS
    assert len(ops.received) == MOST_ATTEMPTS
    assert len({(each.id, each.body) for each in ops.received}) == 1
    assert len({each.headers["webhook-timestamp"] for each in ops.received}) == MOST_ATTEMPTS
    assert timedelta(hours=20) < plane.clock.time - began < SCHEDULE
    for number, pause in enumerate(pauses[1:]):
        assert 0.8 <= pause / min(5 * 4**number, 4 * 3600) <= 1.2
    [given_up] = [event for event in events if event["event"] == "webhook_given_up"]
    assert (given_up["endpoint"], given_up["job_id"], given_up["error"]) == ("ops", job_id, "HTTP 503")
    tally = await shown(plane)
    assert (tally.failed_attempts, tally.given_up, tally.last_error) == (MOST_ATTEMPTS, 1, "HTTP 503")
    ops.status = 204
    plane.clock.forward(3600 * 24)
    await send(plane)
    assert len(ops.received) == MOST_ATTEMPTS


async def test_a_message_that_is_taken_at_last(plane: Plane, ops: Receiver) -> None:
    ops.status = 500
    await plane.submit()
    await send(plane)
    ops.status = 200
    plane.clock.forward(6)
    await send(plane)
    assert [each.id for each in ops.received] == [ops.received[0].id] * 2
    tally = await shown(plane)
    assert (tally.pending, tally.delivered, tally.failed_attempts, tally.last_error) == (0, 1, 1, "HTTP 500")


@pytest.mark.parametrize(
    ("status", "words"), [(301, "HTTP 301; redirects are not followed"), (404, "HTTP 404"), (500, "HTTP 500")]
)
async def test_other_answers_are_failures(plane: Plane, ops: Receiver, status: int, words: str) -> None:
    ops.status, ops.headers = status, {"Location": f"{ops.url}/elsewhere", "Set-Cookie": "a=b"}
    await plane.submit()
    await send(plane)
    plane.clock.forward(6)
    await send(plane)
    assert [each.path for each in ops.received] == ["/hooks"] * 2
    assert "cookie" not in ops.received[1].headers
    assert (await shown(plane)).last_error.startswith(words)  # type: ignore[union-attr]


async def test_an_answer_without_end_is_not_read(plane: Plane, ops: Receiver) -> None:
    ops.status, ops.content = 200, b"x" * 2**24
    await plane.submit()
    await send(plane)
    assert (await shown(plane)).delivered == 1


async def test_who_does_not_answer_in_time(plane: Plane, ops: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sender.TIMEOUT_S == 15
    monkeypatch.setattr(sender, "TIMEOUT_S", 0.05)
    ops.hangs = True
    await plane.submit()
    await send(plane)
    assert (await shown(plane)).last_error == "no answer within 0.05 s"
    assert (await shown(plane)).pending == 1


async def test_who_is_gone_is_told_nothing_more(plane: Plane, ops: Receiver, events: list[EventDict]) -> None:
    for _ in range(3):
        await finished(plane)
    ops.status = 410
    await send(plane)
    asked = len(ops.received)
    assert 1 <= asked <= AT_ONCE
    tally = await shown(plane)
    assert (tally.gone, tally.pending, tally.given_up) == (True, 0, 9)
    assert "webhook_gone" in [event["event"] for event in events]
    ops.status = 204
    await finished(plane)
    await send(plane)
    assert (len(ops.received), (await shown(plane)).pending) == (asked, 0)
    # After a restart too, and until a test is taken.
    again = Services.build(plane.settings, plane.services.database, plane.ray, plane.clock)
    job_id = await plane.submit()
    await again.webhooks.send_due("ops")
    assert len(ops.received) == asked
    assert (await again.webhooks.test("ops", None)).error is None
    assert not (await shown(plane)).gone
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    await plane.rounds(1)
    await again.webhooks.send_due("ops")
    assert ops.messages[-1]["data"]["job_id"] == job_id
    await again.webhooks.close()


async def test_another_address_ends_that_an_endpoint_is_gone(plane: Plane, ops: Receiver, tmp_path: Path) -> None:
    ops.status = 410
    await plane.submit()
    await send(plane)
    ops.status = 204
    webhooks_file(tmp_path / "webhooks.yaml", {"ops": {"url": f"{ops.url}/new"}})
    again = Services.build(plane.settings, plane.services.database, plane.ray, plane.clock)
    await plane.submit()
    await again.webhooks.send_due("ops")
    assert [each.path for each in ops.received] == ["/hooks", "/new"]
    assert not (await again.webhooks.overview()).items[0].gone
    await again.webhooks.close()


class TestTwoEndpoints:
    @pytest.fixture
    def dead(self) -> Iterator[Receiver]:
        with receiving() as receiver:
            receiver.hangs = True
            yield receiver

    @pytest.fixture
    def endpoints(self, ops: Receiver, dead: Receiver) -> dict[str, dict[str, Any]]:
        return {"dead": {"url": dead.url}, "ops": {"url": ops.url}}

    async def test_one_that_hangs_holds_up_neither_the_other_nor_the_reconciler(
        self, plane: Plane, ops: Receiver, dead: Receiver
    ) -> None:
        pauses, plane.ray.cpus = Pauses(plane), 100
        for _ in range(AT_ONCE + 2):
            await plane.submit()
        sending = asyncio.create_task(plane.services.webhooks.run())
        # The one that sends to ops, and the one that tidies up; the third hangs.
        await pauses.settled(2)
        assert len(ops.received) == AT_ONCE + 2
        job_id = await finished(plane)
        pauses.end()
        await pauses.settled(2)
        assert [each["data"]["state"] for each in ops.messages if each["data"]["job_id"] == job_id] == [
            "queued", "starting", "succeeded",
        ]  # fmt: skip
        assert 1 <= len(dead.received) <= AT_ONCE
        sending.cancel()
        await asyncio.wait([sending])
        assert (await shown(plane, "dead")).pending == (await shown(plane)).delivered == len(ops.received)
        dead.released.set()
        dead.hangs = False
        while await send(plane, "dead"):
            pass
        assert {each.id for each in dead.received} == {each.id for each in ops.received}

    async def test_no_more_than_some_are_on_their_way_to_one(self, plane: Plane, dead: Receiver) -> None:
        inner = plane.services.webhooks._senders["dead"].send
        on_their_way, most = 0, 0

        async def watched(*arguments: Any) -> sender.Outcome:
            nonlocal on_their_way, most
            on_their_way += 1
            most = max(most, on_their_way)
            if most == AT_ONCE:
                dead.released.set()
            outcome = await inner(*arguments)
            on_their_way -= 1
            return outcome

        plane.services.webhooks._senders["dead"].send = watched  # type: ignore[method-assign]
        for _ in range(3 * AT_ONCE):
            await plane.submit()
        await send(plane, "dead")
        assert most == AT_ONCE
        assert len(dead.received) == 3 * AT_ONCE


async def test_what_is_long_over_is_deleted(plane: Plane, ops: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_DELETED_AT_ONCE", 2)
    await finished(plane)
    await send(plane)
    plane.clock.time += KEPT
    assert not await plane.services.webhooks.tidy()
    assert len(await rows(plane)) == 3
    await plane.submit()
    plane.clock.forward(1)
    assert await plane.services.webhooks.tidy()
    assert not await plane.services.webhooks.tidy()
    assert [row["state"] for row in await rows(plane)] == ["pending"]
    assert (await shown(plane)).delivered == 3


async def test_what_waits_for_an_endpoint_that_is_no_more_is_given_up_in_the_end(
    plane: Plane, ops: Receiver, tmp_path: Path, events: list[EventDict]
) -> None:
    await plane.submit()
    webhooks_file(tmp_path / "webhooks.yaml", {"new": {"url": ops.url}})
    again = Services.build(plane.settings, plane.services.database, plane.ray, plane.clock)
    plane.clock.time += SCHEDULE
    await again.webhooks.tidy()
    assert [row["state"] for row in await rows(plane)] == ["pending"], "it may come back into the file"
    plane.clock.forward(1)
    await again.webhooks.tidy()
    assert [row["state"] for row in await rows(plane)] == ["given_up"]
    assert [event["messages"] for event in events if event["event"] == "webhooks_given_up"] == [1]
    await again.webhooks.close()


async def test_a_database_that_is_away_delays_messages(
    plane: Plane, ops: Receiver, monkeypatch: pytest.MonkeyPatch, events: list[EventDict]
) -> None:
    pauses = Pauses(plane)
    await plane.submit()
    failures: list[Exception] = [
        DatabaseUnavailableError("away"),
        DatabaseUnavailableError("away"),
        RuntimeError("odd"),
    ]
    inner: Callable[..., Any] = plane.services.webhooks._store.delivered

    async def failing(*arguments: Any) -> None:
        if failures:
            raise failures.pop(0)
        await inner(*arguments)

    monkeypatch.setattr(plane.services.webhooks._store, "delivered", failing)
    sending = asyncio.create_task(plane.services.webhooks.run())
    for _ in range(4):
        await pauses.settled(2)
        pauses.end()
    await pauses.settled(2)
    sending.cancel()
    await asyncio.wait([sending])
    assert [each.id for each in ops.received] == [ops.received[0].id] * 4
    logged = [event["event"] for event in events if event["event"].startswith("webhooks_")]
    assert logged == ["webhooks_wait_for_the_database", "webhooks_failed"]
