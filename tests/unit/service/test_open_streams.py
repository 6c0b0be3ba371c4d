"""A stream ends when the token that opened it would not open it any more, and no other does."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.responses import StreamingResponse
from starlette.types import Message
from structlog.typing import EventDict

from service.jobs import logs
from service.jobs.logs import LogPart
from service.problems import Problem, ProblemType
from service.security import open_streams
from service.security.open_streams import GuardedStream, OpenStreams
from service.security.roles import Role
from service.security.tokens_file import TokenEntry
from service.settings import Settings
from service.store.engine import DatabaseUnavailableError
from service.telemetry import feeds
from tests.unit.service.callers import Callers
from tests.unit.service.conftest import JOB, Plane
from tests.unit.service.test_api import problem

pytestmark = pytest.mark.anyio

STREAMS = ["/v1/jobs/{job_id}/events", "/v1/jobs/{job_id}/logs?follow=1"]


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path / "tokens.yaml")


@pytest.fixture
def settings(settings: Settings, callers: Callers) -> Settings:
    return settings.model_copy(update={"tokens_file": callers.file})


@pytest.fixture(autouse=True)
def looks(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower has looked once when it is there, and does not look again: none is cut off within the database."""
    monkeypatch.setattr(feeds, "_PAUSE_S", 3600)
    monkeypatch.setattr(logs, "_FOLLOW_PAUSE_S", 3600)


async def followed(plane: Plane, callers: Callers) -> str:
    """A job of the project `ranking` that goes on and on; its id."""
    spec = JOB | {"queue": {"project": "ranking"}}
    answer = await plane.http.post("/v1/jobs", json=spec, headers=callers.headers("root"))
    job_id = answer.json()["id"]
    assert isinstance(job_id, str)
    return job_id


async def opened(plane: Plane, path: str, headers: dict[str, str]) -> asyncio.Task[httpx.Response]:
    """A client that follows and waits for news; done when the stream is."""
    before, looked = len(plane.services.streams._open), asyncio.Event()
    inner = plane.services.logs.read

    async def read(job_id: str, offset: int) -> LogPart:
        looked.set()
        return await inner(job_id, offset)

    plane.services.logs.read = read  # type: ignore[method-assign]
    client = asyncio.create_task(plane.http.get(path, headers=headers))
    while len(plane.services.streams._open) == before:
        assert not client.done(), client.result().text
        await asyncio.sleep(0)
    if "events" in path:
        for followed in plane.services.feeds._followed.values():
            await asyncio.wait_for(followed.feed.begin(0), 20)
    else:
        await asyncio.wait_for(looked.wait(), 20)
    plane.services.logs.read = inner  # type: ignore[method-assign]
    return client


async def left(*clients: asyncio.Task[httpx.Response]) -> None:
    for client in clients:
        client.cancel()
    await asyncio.wait(clients)


def _removed(callers: Callers) -> None:
    del callers.entries["looker"]
    callers.write()


def _moved(callers: Callers) -> None:
    entry = callers.entries["looker"]
    callers.entries["looker"] = entry.model_copy(update={"project": "ads"})
    callers.write()


def _renewed(callers: Callers) -> None:
    fields = callers.entries["looker"].model_dump() | {"hash": f"sha256:{'0' * 64}"}
    callers.entries["looker"] = TokenEntry.model_validate(fields)
    callers.write()


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("change", [_removed, _moved, _renewed])
async def test_a_stream_ends_with_the_right_to_open_it(
    plane: Plane, callers: Callers, path: str, change: Callable[[Callers], None], events: list[EventDict]
) -> None:
    path = path.format(job_id=await followed(plane, callers))
    client = await opened(plane, path, callers.headers("looker"))
    other = await opened(plane, path, callers.headers("ci"))
    await plane.services.streams.look()
    change(callers)
    await plane.services.streams.look()
    answer = await asyncio.wait_for(client, 20)
    assert answer.status_code == 200
    assert "event: end" not in answer.text
    assert [event["event"] for event in events].count("stream_ended") == 1
    assert (await plane.http.get(path, headers=callers.headers("looker"))).status_code in (401, 404)
    await plane.services.streams.look()
    assert not other.done()
    await left(other)
    assert plane.services.streams._open == set()
    assert plane.services.feeds.followers == {}


async def test_a_tokens_file_that_was_spoilt_ends_all_streams(plane: Plane, callers: Callers) -> None:
    path = STREAMS[0].format(job_id=await followed(plane, callers))
    clients = [await opened(plane, path, callers.headers(name)) for name in ("looker", "root")]
    callers.file.write_text("nonsense")
    await plane.services.streams.look()
    for client in clients:
        await asyncio.wait_for(client, 20)


async def test_a_token_that_sees_fewer_projects_comes_back(plane: Plane, callers: Callers) -> None:
    """What it is sent is written for those who see all projects."""
    path = STREAMS[0].format(job_id=await followed(plane, callers))
    client = await opened(plane, path, callers.headers("prometheus"))
    callers.entries["prometheus"] = callers.entries["prometheus"].model_copy(update={"project": "ranking"})
    callers.write()
    await plane.services.streams.look()
    await asyncio.wait_for(client, 20)
    other = await opened(plane, path, callers.headers("prometheus"))
    await plane.services.streams.look()
    assert not other.done()
    await left(other)


async def test_a_change_that_leaves_the_right_leaves_the_stream(plane: Plane, callers: Callers) -> None:
    path = STREAMS[0].format(job_id=await followed(plane, callers))
    client = await opened(plane, path, callers.headers("looker"))
    callers.entries["looker"] = callers.entries["looker"].model_copy(update={"role": Role.SUBMITTER})
    del callers.entries["ci"]
    callers.write()
    for _ in range(3):
        await plane.services.streams.look()
    assert not client.done()
    await left(client)


async def test_the_file_is_looked_at_all_the_time(
    plane: Plane, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_streams, "LOOK_EVERY_S", 0.001)
    looking = asyncio.create_task(plane.services.streams.run())
    path = STREAMS[0].format(job_id=await followed(plane, callers))
    client = await opened(plane, path, callers.headers("looker"))
    _removed(callers)
    await asyncio.wait_for(client, 20)
    looking.cancel()
    await asyncio.wait([looking])


async def test_a_token_that_goes_while_the_stream_opens(plane: Plane, callers: Callers) -> None:
    """The change was seen before the stream was known: it is admitted again all the same, and then no more."""
    path = STREAMS[0].format(job_id=await followed(plane, callers))
    other = await opened(plane, path, callers.headers("ci"))
    await plane.services.streams.look()
    client = await opened(plane, path, callers.headers("looker"))
    asked: list[str] = []
    for stream in plane.services.streams._open:

        async def refuse(admit: Callable[[], object] = stream.admit) -> None:
            asked.append("again")
            raise Problem(ProblemType.UNAUTHORIZED, "no such token")

        stream.admit = refuse
    await plane.services.streams.look()
    await asyncio.wait_for(client, 20)
    assert asked == ["again"]
    assert not other.done()
    await left(other)


async def test_a_database_that_is_away_ends_streams_that_need_it(plane: Plane, callers: Callers) -> None:
    streams = plane.services.streams
    path = STREAMS[0].format(job_id=await followed(plane, callers))
    client = await opened(plane, path, callers.headers("looker"))

    async def away() -> None:
        raise DatabaseUnavailableError("away")

    [stream] = streams._open
    stream.admit = away
    await streams.look()
    await asyncio.wait_for(client, 20)


async def test_a_client_that_takes_nothing_is_let_go(plane: Plane) -> None:
    """Its stream hangs in the middle of sending."""
    closed, hanging = [], asyncio.Event()

    async def content():  # type: ignore[no-untyped-def]
        try:
            yield b"one"
            yield b"two"
        finally:
            closed.append(True)

    async def send(message: Message) -> None:
        if message.get("body") == b"one":
            hanging.set()
            await asyncio.Event().wait()

    async def refuse() -> None:
        raise Problem(ProblemType.UNAUTHORIZED, "no such token")

    streams = OpenStreams(plane.services.access)
    stream = GuardedStream(content(), streams, refuse)
    sending = asyncio.create_task(stream.stream_response(send))
    await hanging.wait()
    await streams.look()
    await asyncio.wait_for(sending, 20)
    assert closed == [True]
    assert isinstance(stream, StreamingResponse)


async def test_why_the_service_is_not_ready_is_for_admins(
    plane: Plane, callers: Callers, monkeypatch: pytest.MonkeyPatch, events: list[EventDict]
) -> None:
    async def away() -> None:
        raise DatabaseUnavailableError("cannot connect to secret-host as secret-user")

    monkeypatch.setattr(plane.services.database, "ping", away)
    plane.ray.away = True
    texts = {"database": "cannot connect to secret-host as secret-user", "ray": "ray.test does not answer"}
    hidden = dict.fromkeys(texts, "does not answer; the log says why")
    wrong = {"Authorization": "Bearer guess"}
    for headers in ({}, wrong, callers.headers("looker"), callers.headers("prometheus")):
        document = problem(await plane.http.get("/readyz", headers=headers), ProblemType.NOT_READY)
        assert {error["field"]: error["message"] for error in document["errors"]} == hidden
        assert "ray.test" not in str(document)
    assert [event for event in events if event["event"] == "not_ready"][-1].items() >= texts.items()
    document = problem(await plane.http.get("/readyz", headers=callers.headers("root")), ProblemType.NOT_READY)
    assert {error["field"]: error["message"] for error in document["errors"]} == texts
