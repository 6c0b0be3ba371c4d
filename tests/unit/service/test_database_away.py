"""A database that goes away for a while: PostgreSQL is stopped, or another process holds the SQLite file."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from sqlalchemy import URL
from structlog.typing import EventDict

from service.jobs.loop import ReconcilerLoop
from service.models import JobState
from service.problems import ProblemType
from service.store import database, engine
from service.store.database import Database
from service.store.engine import DatabaseUnavailableError, parse_url
from tests.unit.service.conftest import JOB, Plane
from tests.unit.service.fakes import sample
from tests.unit.service.postgres import PostgresServer
from tests.unit.service.test_api import problem

pytestmark = pytest.mark.anyio


class Outage(Protocol):
    """What a test switches on and off. `reads` says whether reading goes on meanwhile."""

    reads: bool

    def begin(self) -> None: ...

    def end(self) -> None: ...


@dataclass
class StoppedServer:
    server: PostgresServer
    reads: bool = False

    def begin(self) -> None:
        self.server.stop()

    def end(self) -> None:
        self.server.start()


class LockedFile:
    """Another process writes, and does not come to an end."""

    reads = True

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MS", 20)


@pytest.fixture
def outage(plane: Plane, database_url: URL, request: pytest.FixtureRequest) -> Iterator[Outage]:
    if database_url.get_backend_name() == "sqlite":
        locked = LockedFile(str(database_url.database))
        yield locked
        locked.close()
        return
    server = request.getfixturevalue("postgres_server")
    assert isinstance(server, PostgresServer)
    stopped = StoppedServer(server)
    yield stopped
    if not server.running:
        server.start()


async def test_requests_are_told_and_work_when_it_is_back(plane: Plane, outage: Outage) -> None:
    job_id = await plane.started()
    outage.begin()
    answers = [
        await plane.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "once"}),
        await plane.http.post(f"/v1/jobs/{job_id}/stop"),
        await plane.report(job_id, sample(0, 0), sample(0, 1)),
    ]
    if not outage.reads:
        answers.append(await plane.http.get("/v1/jobs"))
        problem(await plane.http.get("/readyz"), ProblemType.NOT_READY)
    for answer in answers:
        problem(answer, ProblemType.DATABASE_UNAVAILABLE)
        assert answer.headers["retry-after"] == "5"
    assert (await plane.http.get("/livez")).status_code == 200
    outage.end()

    submitted = await plane.http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "once"})
    assert submitted.status_code == 202
    assert (await plane.report(job_id, sample(0, 0), sample(0, 1))).status_code == 204
    assert (await plane.job(job_id))["latest"]["step"] == 0
    assert (await plane.http.get("/readyz")).status_code == 200
    listed = (await plane.http.get("/v1/jobs")).json()["items"]
    assert [job["id"] for job in listed] == [submitted.json()["id"], job_id]
    assert await plane.state(job_id) is JobState.STARTING


async def test_the_reconciler_tries_again_until_it_is_back(
    plane: Plane, outage: Outage, events: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await plane.submit()
    rounds = 0
    run_once = plane.services.reconciler.run_once

    async def counted() -> None:
        nonlocal rounds
        rounds += 1
        await run_once()

    monkeypatch.setattr(plane.services.reconciler, "run_once", counted)
    outage.begin()
    loop = asyncio.create_task(ReconcilerLoop(plane.services.reconciler, pause_s=0.001).run())
    async with asyncio.timeout(30):
        while rounds < 4:
            await asyncio.sleep(0.001)
        assert plane.ray.calls == []
        outage.end()
        while job_id not in plane.ray.jobs:
            await asyncio.sleep(0.001)
    loop.cancel()
    # Its transaction has to end before the database is closed.
    with suppress(asyncio.CancelledError):
        await loop
    logged = [event["event"] for event in events]
    assert logged.count("reconciler_waits_for_the_database") == 1
    assert "reconciler_failed" not in logged
    assert plane.ray.calls == [f"submit {job_id}"]


async def test_a_job_whose_start_could_not_be_written_down_is_not_started_twice(
    plane: Plane, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await plane.submit()
    submit = plane.ray.submit

    async def submit_and_lose_the_database(*what: Any) -> None:
        await submit(*what)
        outage.begin()

    monkeypatch.setattr(plane.ray, "submit", submit_and_lose_the_database)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            await plane.rounds(1)
    outage.end()
    await plane.rounds(1)
    assert plane.ray.calls == [f"submit {job_id}"]
    assert (await plane.report(job_id, sample(0, 0), sample(0, 1))).status_code == 204
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.RUNNING


async def test_connections_that_a_restart_has_cut_are_not_noticed(plane: Plane, outage: Outage) -> None:
    job_id = await plane.started()

    async def ask() -> list[int]:
        """Several at a time, so that the pool holds several connections."""
        answers = await asyncio.gather(*(plane.http.get(f"/v1/jobs/{job_id}") for _ in range(5)))
        return [answer.status_code for answer in answers]

    assert await ask() == [200] * 5
    outage.begin()
    outage.end()
    assert await ask() == [200] * 5


async def test_a_transaction_that_never_ends_is_given_up(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "TRANSACTION_TIMEOUT_S", 0.01)
    for transaction in (plane.services.database.read, plane.services.database.write):
        with pytest.raises(DatabaseUnavailableError, match="TimeoutError"):
            async with transaction():
                await asyncio.Event().wait()
    monkeypatch.undo()
    assert (await plane.started()) in plane.ray.jobs


async def test_a_service_does_not_start_without_its_database() -> None:
    url = parse_url("postgresql://someone:secret@127.0.0.1:1/jobs")
    with pytest.raises(DatabaseUnavailableError, match=r"127\.0\.0\.1:1/jobs does not answer: .*; start it") as caught:
        await Database.open(url)
    assert "secret" not in str(caught.value)
