"""Following a job over real connections: many clients, one that reads nothing, and a service that is started again."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from service import server
from service.app import create_app
from service.models import JobState
from service.security.audit import AuditAction, Deed
from service.services import Services
from service.settings import Settings
from service.store.jobs import ACTIVE_STATES, JobStore
from service.telemetry import feeds
from service.telemetry.feed import Feed
from tests.unit.service.conftest import JOB
from tests.unit.service.fakes import START, FakeRay
from tests.unit.service.streams import Event, events_in, numbers
from workers.job import JobSpec

pytestmark = pytest.mark.anyio

PATIENCE_S = 60
JOB_ID = "job-1"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_PAUSE_S", 0.02)


class Plane:
    """A control plane that answers on a port."""

    def __init__(self, services: Services, port: int) -> None:
        self.services, self.port = services, port
        self._jobs = JobStore(services.database)

    async def add(self) -> None:
        await self._jobs.add(JOB_ID, JobSpec.model_validate(JOB), START, None, Deed(None, AuditAction.SUBMIT))

    async def change(self, reason: str) -> None:
        """Something happens to the job: an event, whatever the state."""
        assert await self._jobs.change(JOB_ID, START, ACTIVE_STATES, state=JobState.STARTING, reason=reason)

    async def end(self) -> None:
        await self._jobs.change(JOB_ID, START, ACTIVE_STATES, state=JobState.FAILED, reason="over", ended_at=START)


@asynccontextmanager
async def plane_of(home: Path) -> AsyncIterator[Plane]:
    """A control plane without Ray; the job that tests add stays as they leave it."""
    listener = server._listen("127.0.0.1", 0)
    settings = Settings(home=home, dashboard=home / "dist", port=listener.getsockname()[1])
    app = create_app(settings, FakeRay(away=True))
    served = server.uvicorn.Server(
        server.uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    )
    running = asyncio.create_task(served.serve(sockets=[listener]))
    while not served.started:
        await asyncio.sleep(0.01)
    try:
        yield Plane(app.state.services, settings.port)
    finally:
        served.should_exit = True
        await asyncio.wait_for(running, PATIENCE_S)
        listener.close()


class Client:
    """A connection of its own on which nothing is read ahead."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._bytes = bytearray()
        self._searched = 0

    @classmethod
    async def connect(cls, plane: Plane, after: int = 0, receive_bytes: int | None = None) -> "Client":
        raw = socket.socket()
        if receive_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", plane.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=receive_bytes or 2**16)
        request = f"GET /v1/jobs/{JOB_ID}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nLast-Event-ID: {after}\r\n\r\n"
        writer.write(request.encode())
        return cls(reader, writer)

    async def until(self, word: bytes) -> None:
        """Read until this has come; raises `IncompleteReadError` if the stream ends before."""
        async with asyncio.timeout(PATIENCE_S):
            while (found := self._bytes.find(word, self._searched)) < 0:
                self._searched = max(self._searched, len(self._bytes) - len(word))
                piece = await self._reader.read(2**16)
                if not piece:
                    raise asyncio.IncompleteReadError(b"", None)
                self._bytes += piece
        self._searched = found

    async def rest(self) -> None:
        """Read until the stream ends or breaks."""
        try:
            await self.until(b"never")
        except (asyncio.IncompleteReadError, ConnectionError):
            self._writer.close()

    @property
    def events(self) -> list[Event]:
        """The whole events among what came, without the chunks that carried them."""
        head, _, body = bytes(self._bytes).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        content, at = bytearray(), 0
        while (line := body.find(b"\r\n", at)) >= 0:
            size = int(body[at:line], 16)
            content += body[line + 2 : line + 2 + size]
            at = line + 2 + size + 2
        return events_in(content[: content.rfind(b"\n\n") + 2].decode() if b"\n\n" in content else "")

    def close(self) -> None:
        self._writer.close()


async def test_two_hundred_clients_and_a_restart(tmp_path: Path) -> None:
    async with plane_of(tmp_path) as plane:
        await plane.add()
        before = await asyncio.gather(*(Client.connect(plane) for _ in range(200)))
        for turn in range(5):
            await plane.change(f"turn {turn}.")
            await asyncio.gather(*(client.until(f"turn {turn}.".encode()) for client in before))
        assert plane.services.feeds.followers == {JOB_ID: 200}
    await asyncio.gather(*(client.rest() for client in before))
    async with plane_of(tmp_path) as plane:
        await plane.change("after the restart.")
        last = [numbers(client.events)[-1] for client in before]
        after = await asyncio.gather(*(Client.connect(plane, number) for number in last))
        await asyncio.gather(*(client.until(b"after the restart.") for client in after))
        await plane.end()
        await asyncio.gather(*(client.until(b"event: end") for client in after))
        whole = await Client.connect(plane)
        await whole.until(b"event: end")
        every = numbers(whole.events)
        assert len(every) == 1 + 5 + 1 + 1
        for earlier, later in zip(before, after, strict=True):
            assert numbers(earlier.events) + numbers(later.events) == every
            assert later.events[-1] == Event("end", "failed")
        for client in [*after, whole]:
            client.close()


async def test_who_reads_nothing_is_cut_off_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "Feed", lambda: Feed(kept=4))
    monkeypatch.setattr(server, "_DEAF_AFTER_S", 2)
    async with plane_of(tmp_path) as plane:
        await plane.add()
        deaf = await Client.connect(plane, receive_bytes=4096)
        others = await asyncio.gather(*(Client.connect(plane) for _ in range(5)))
        await asyncio.gather(*(client.until(b"event: state") for client in others))
        assert plane.services.feeds.followers == {JOB_ID: 6}
        for turn in range(40):
            await plane.change(f"turn {turn}." + "x" * 200_000)
            await asyncio.gather(*(client.until(f"turn {turn}.".encode()) for client in others))
        async with asyncio.timeout(PATIENCE_S):
            while plane.services.feeds.followers != {JOB_ID: 5}:
                await asyncio.sleep(0.02)
        await plane.end()
        await asyncio.gather(*(client.until(b"event: end") for client in others))
        every = numbers(others[0].events)
        assert len(every) == 42
        assert all(numbers(client.events) == every for client in others)
        await deaf.rest()
        seen = numbers(deaf.events)
        assert seen == every[: len(seen)]
        assert len(seen) < 35
        again = await Client.connect(plane, seen[-1] if seen else 0)
        await again.until(b"event: end")
        assert seen + numbers(again.events) == every
        for client in [*others, again]:
            client.close()
