"""Following a job: every change of state once, whoever comes, goes, or does not read."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.typing import EventDict

from service.cluster.gateway import RayStatus
from service.models import JobState
from service.problems import ProblemType
from service.services import Services
from service.store.database import Database
from service.store.engine import DatabaseUnavailableError
from service.store.jobs import ACTIVE_STATES, JobRecord
from service.telemetry import feeds
from service.telemetry.feed import Feed
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import START, sample
from tests.unit.service.streams import Event, Follower, events_in, numbers
from tests.unit.service.test_api import problem

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def quick(monkeypatch: pytest.MonkeyPatch, plane: Plane) -> AsyncIterator[None]:
    """Readers that look all the time, of which none is left over when a test is done."""
    monkeypatch.setattr(feeds, "_PAUSE_S", 0.002)
    yield
    assert plane.services.feeds.followers == {}
    await asyncio.sleep(0)
    assert readers() == []


def readers() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("events of")]


async def end(plane: Plane, job_id: str) -> None:
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(1)


async def read(plane: Plane, job_id: str, **headers: str) -> list[Event]:
    """The whole stream of a job that has ended."""
    async with asyncio.timeout(20):
        answer = await plane.http.get(f"/v1/jobs/{job_id}/events", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    return events_in(answer.text)


async def test_the_whole_story_of_a_job(plane: Plane) -> None:
    job_id = await plane.started()
    await plane.report(job_id, sample(0, 0), sample(0, 1))
    await plane.rounds(1)
    latest = (await plane.job(job_id))["latest"]
    await end(plane, job_id)
    events = await read(plane, job_id)
    assert [event.name for event in events] == ["state"] * 4 + ["step", "end"]
    changes: list[dict[str, Any]] = [json.loads(event.data or "") for event in events[:4]]
    assert [change["state"] for change in changes] == ["queued", "starting", "running", "succeeded"]
    assert changes[0] | {"number": 0} == {
        "number": 0, "time": "2026-01-02T03:04:05.000Z", "state": "queued", "reason": None,
    }  # fmt: skip
    assert [event.id for event in events] == [str(change["number"]) for change in changes] + [None, None]
    assert json.loads(events[4].data or "") == latest
    assert events[5].data == "succeeded"


async def test_two_hundred_clients_see_every_event_and_one_reader_serves_them(plane: Plane) -> None:
    job_id = await plane.started()
    clients = [Follower(plane.services.feeds, job_id) for _ in range(200)]
    for client in clients:
        client.go()
    for step in range(5):
        await plane.report(job_id, sample(step, 0), sample(step, 1))
        if step == 0:
            await plane.rounds(1)
        for client in clients:
            await client.until(f'"step":{step},')
        assert readers() == [f"events of {job_id}"]
        assert plane.services.feeds.followers == {job_id: 200}
    await end(plane, job_id)
    seen = [await client.done() for client in clients]
    assert [event.name for event in seen[0]].count("step") == 5
    assert [json.loads(event.data or "")["state"] for event in seen[0] if event.name == "state"] == [
        "queued", "starting", "running", "succeeded",
    ]  # fmt: skip
    assert seen[0][-1] == Event("end", "succeeded")
    assert all(events == seen[0] for events in seen)


async def test_a_job_is_read_as_often_for_many_as_for_one(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await plane.started()
    reads = 0
    inner = plane.services.feeds._read_once

    async def counted(job_id: str, feed: Feed) -> bool:
        nonlocal reads
        reads += 1
        return await inner(job_id, feed)

    monkeypatch.setattr(plane.services.feeds, "_read_once", counted)
    monkeypatch.setattr(feeds, "_PAUSE_S", 3600)
    clients = [Follower(plane.services.feeds, job_id) for _ in range(50)]
    await asyncio.gather(*(client.take() for client in clients))
    assert reads == 1
    assert {client.text for client in clients} == {clients[0].text}
    assert "starting" in clients[0].text
    for client in clients:
        await client.leave()


async def test_who_reads_nothing_holds_up_nobody_and_misses_nothing(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, events: list[EventDict]
) -> None:
    monkeypatch.setattr(feeds, "Feed", lambda: Feed(kept=4))
    job_id = await plane.started()
    idle, busy = Follower(plane.services.feeds, job_id), Follower(plane.services.feeds, job_id)
    await idle.take()
    busy.go()
    for step in range(8):
        await plane.report(job_id, sample(step, 0), sample(step, 1))
        await busy.until(f'"step":{step},')
    await plane.rounds(1)
    await busy.until("running")
    assert not await idle.take(), "it is cut off"
    assert "follower_cut_off" in [event["event"] for event in events]
    assert numbers(idle.events) == numbers(busy.events)[:2]
    again = Follower(plane.services.feeds, job_id, numbers(idle.events)[-1])
    again.go()
    await end(plane, job_id)
    everything = await busy.done()
    assert numbers(idle.events) + numbers(await again.done()) == numbers(everything)
    assert len(numbers(everything)) == 4


async def test_resuming_at_every_id_there_can_be(plane: Plane) -> None:
    job_id = await plane.started()
    other = await plane.submit()
    await plane.report(job_id, sample(0, 0), sample(0, 1))
    await plane.rounds(1)
    await plane.http.post(f"/v1/jobs/{other}/stop")
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    await end(plane, job_id)
    every = numbers(await read(plane, job_id))
    assert len(every) == 5
    assert every != list(range(every[0], every[0] + 5)), "the numbers of another job lie in between"
    for last in [*range(every[-1] + 3), 2**53]:
        events = await read(plane, job_id, **{"Last-Event-ID": str(last)})
        assert numbers(events) == [number for number in every if number > last]
        assert [event.name for event in events[-2:]] == ["step", "end"]


async def test_the_last_change_comes_before_the_end(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends just before the reader looks at it, for the first time after it was followed."""
    job_id = await plane.started()
    client = Follower(plane.services.feeds, job_id)
    jobs = plane.services.feeds._jobs
    inner, looks = jobs.get, 0

    async def ending(job_id: str) -> JobRecord | None:
        nonlocal looks
        looks += 1
        if looks == 2:
            await jobs.change(job_id, START, ACTIVE_STATES, state=JobState.FAILED, reason="now", ended_at=START)
        return await inner(job_id)

    monkeypatch.setattr(jobs, "get", ending)
    client.go()
    events = await client.done()
    assert json.loads(events[-2].data or "")["reason"] == "now"
    assert events[-1] == Event("end", "failed")


@pytest.mark.parametrize("last", ["-1", "x", "", "1.5", str(2**53 + 1)])
async def test_an_id_that_no_event_had(plane: Plane, last: str) -> None:
    job_id = await plane.submit()
    answer = await plane.http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last})
    problem(answer, ProblemType.INVALID_REQUEST)


async def test_a_job_that_is_deleted_while_it_is_followed(plane: Plane) -> None:
    problem(await plane.http.get("/v1/jobs/job-nope/events"), ProblemType.UNKNOWN_JOB)
    job_id = await plane.started()
    client = Follower(plane.services.feeds, job_id)
    client.go()
    await client.until("starting")
    # Ended and gone between two looks of the reader.
    async with plane.services.database.write() as connection:
        await connection.exec_driver_sql("DELETE FROM jobs")
    assert (await client.done())[-1] == Event("end", "deleted")
    problem(await plane.http.get(f"/v1/jobs/{job_id}/events"), ProblemType.UNKNOWN_JOB)


async def test_going_on_after_a_restart_of_the_service(plane: Plane) -> None:
    job_id = await plane.started()
    before = Follower(plane.services.feeds, job_id)
    before.go()
    await before.until("starting")
    await plane.services.feeds.close()
    assert readers() == []
    await before.leave()
    await plane.services.database.close()
    database = await Database.open(plane.settings.database)
    services = Services.build(plane.settings, database, plane.ray, plane.clock)
    after = Follower(services.feeds, job_id, numbers(before.events)[-1])
    plane.ray.says(job_id, RayStatus.FAILED, "it broke")
    await services.reconciler.run_once()
    after.go()
    events = await after.done()
    assert [json.loads(event.data or "")["reason"] for event in events[:-1]] == ["it broke"]
    assert events[-1] == Event("end", "failed")
    assert numbers(events)[0] > numbers(before.events)[-1]
    await database.close()


async def test_comments_keep_a_quiet_connection_open(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_QUIET_ROUNDS", 3)
    job_id = await plane.submit()
    client = Follower(plane.services.feeds, job_id)
    client.go()
    while len(client.events) < 4:
        await client.until(": nothing new")
        await asyncio.sleep(0)
    assert client.events[0].name == "state"
    assert set(client.events[1:]) == {Event(comment="nothing new")}
    await client.leave()


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (DatabaseUnavailableError("the database is away"), ["events_wait_for_the_database"]),
        (RuntimeError("what nobody thought of"), ["events_not_read"] * 3),
    ],
)
async def test_a_database_that_is_away_for_a_while(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, events: list[EventDict], error: Exception, logged: list[str]
) -> None:
    job_id = await plane.started()
    store = plane.services.feeds._events
    inner, failures = store.after, 3

    async def failing(job_id: str, number: int) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise error
        return await inner(job_id, number)

    monkeypatch.setattr(store, "after", failing)
    client = Follower(plane.services.feeds, job_id)
    client.go()
    await client.until("starting")
    await end(plane, job_id)
    assert len(numbers(await client.done())) == 3
    assert [event["event"] for event in events if event["event"].startswith("events_")] == logged


async def test_an_unchanged_step_is_told_once(plane: Plane) -> None:
    job_id = await plane.with_steps(1)
    client = Follower(plane.services.feeds, job_id)
    client.go()
    await client.until('"step":0,')
    await plane.report(job_id, sample(0, 0), sample(0, 1))
    await end(plane, job_id)
    assert [event.name for event in await client.done()].count("step") == 1
    assert await plane.state(job_id) is JobState.SUCCEEDED
