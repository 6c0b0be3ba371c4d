"""The control plane without sockets: the real application and database, a fake Ray, no background task."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import URL
from structlog.testing import capture_logs
from structlog.typing import EventDict

from service.app import create_app
from service.models import JobState
from service.services import Services
from service.settings import Settings
from service.store.database import Database
from service.store.engine import parse_url
from tests.unit.service.fakes import FakeClock, FakeRay, sample
from tests.unit.service.postgres import PostgresServer, installed

JOB: dict[str, Any] = {"name": "tiny", "data": {"source": "synthetic"}, "workers": {"count": 2}}


@dataclass
class Plane:
    """What a test drives: the API through `http`, Ray through `ray`, time through `clock`."""

    http: httpx.AsyncClient
    ray: FakeRay
    clock: FakeClock
    services: Services
    settings: Settings

    async def submit(self, **changes: Any) -> str:
        """Submit the tiny job; its id."""
        answer = await self.http.post("/v1/jobs", json=JOB | changes)
        assert answer.status_code == 202, answer.text
        job_id = answer.json()["id"]
        assert isinstance(job_id, str)
        return job_id

    async def rounds(self, count: int) -> None:
        """Let the reconciler make so many rounds."""
        for _ in range(count):
            await self.services.reconciler.run_once()

    async def job(self, job_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert isinstance(shown, dict)
        return shown

    async def state(self, job_id: str) -> JobState:
        return JobState((await self.job(job_id))["state"])

    async def started(self, **changes: Any) -> str:
        """A job that Ray runs and that has not reported yet; its id."""
        job_id = await self.submit(**changes)
        await self.rounds(1)
        assert job_id in self.ray.jobs
        return job_id

    async def report(self, job_id: str, *samples: dict[str, Any], **parts: Any) -> httpx.Response:
        """Deliver a batch as the job's monitor actor does."""
        return await self.http.post(
            f"/internal/v1/jobs/{job_id}/reports",
            content=json.dumps({"samples": list(samples), **parts}),
            headers={"Authorization": f"Bearer {self.ray.token(job_id)}"},
        )

    async def with_steps(self, steps: int, ranks: int = 2) -> str:
        """A job of which every rank has reported so many steps."""
        job_id = await self.started()
        samples = [sample(step, rank) for step in range(steps) for rank in range(ranks)]
        assert (await self.report(job_id, *samples)).status_code == 204
        return job_id


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def events() -> Iterator[list[EventDict]]:
    """What the service logs, instead of on the terminal."""
    with capture_logs() as caught:
        yield caught


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    programs = installed()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    server = PostgresServer(programs)
    try:
        server.create()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """Both databases, one after the other: without rows, and that of PostgreSQL with all tables."""
    if request.param == "sqlite":
        return parse_url(f"sqlite:///{tmp_path}/home/overlane.db")
    server = request.getfixturevalue("postgres_server")
    assert isinstance(server, PostgresServer)
    return server.clean()


@pytest.fixture
def settings(tmp_path: Path, database_url: URL, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("OVERLANE_URL", "OVERLANE_TOKEN", "OVERLANE_HOME", "OVERLANE_TOKENS_FILE", "OVERLANE_ENTRYPOINT"):
        monkeypatch.delenv(name, raising=False)
    url = SecretStr(database_url.render_as_string(hide_password=False))
    return Settings(home=tmp_path / "home", dashboard=tmp_path / "dist", database_url=url)


@pytest.fixture
async def plane(settings: Settings) -> AsyncIterator[Plane]:
    ray, clock = FakeRay(), FakeClock()
    app = create_app(settings, ray)
    database = await Database.open(settings.database)
    app.state.services = services = Services.build(settings, database, ray, clock)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8420") as http:
        yield Plane(http, ray, clock, services, settings)
    await database.close()
