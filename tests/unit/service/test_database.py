"""What both databases take, and how they are named."""

import re

import pytest
from pydantic import ValidationError

from service.cluster.embedded import EmbeddedRay
from service.problems import ProblemType
from service.settings import Settings, faults_of
from service.store.engine import parse_url
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import sample
from tests.unit.service.test_api import problem

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("postgresql://u:p@h:1/d", "postgresql+asyncpg://u:p@h:1/d"),
        ("postgres://h/d", "postgresql+asyncpg://h/d"),
        ("postgresql+psycopg://h/d?sslmode=require", "postgresql+asyncpg://h/d?ssl=require"),
        ("postgresql:///d?host=/run/postgresql", "postgresql+asyncpg:///d?host=%2Frun%2Fpostgresql"),
        ("sqlite:////a/b.db", "sqlite+aiosqlite:////a/b.db"),
    ],
)
def test_urls_of_databases(text: str, url: str) -> None:
    assert parse_url(text).render_as_string(hide_password=False) == url


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("secret", "not a URL such as postgresql://"),
        ("postgresql://u:secret@h:port/d", "not a URL such as"),
        ("postgresql://u:secret@h", "name a database as postgresql://"),
        ("mysql://u:secret@h/d", "name a database as postgresql://"),
        ("sqlite://", "name a database as postgresql://"),
        ("sqlite:///:memory:", "name a database as postgresql://"),
        (
            "postgresql://u:secret@h/d?pool=3&sslmode=require",
            "pool: not known in the URL of a database; known are host",
        ),
    ],
)
def test_other_urls_are_refused_without_their_password(text: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLANE_DATABASE_URL", text)
    with pytest.raises(ValidationError) as caught:
        Settings()
    faults = faults_of(caught.value)
    assert re.match(f"database_url: {fault}", faults)
    assert "secret" not in faults


def test_the_password_is_not_shown_and_not_handed_to_jobs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLANE_DATABASE_URL", "postgresql://u:secret@h/d")
    monkeypatch.setenv("PGPASSWORD", "secret")
    told = Settings(home=settings.home)
    assert told.database.password == "secret"
    assert "secret" not in f"{told!r} {told} {told.database}"
    monkeypatch.setenv("HOME_OF_A_JOB", "kept")
    environment = EmbeddedRay(settings.home, 1)._environment()
    assert "secret" not in environment.values()
    assert environment["HOME_OF_A_JOB"] == "kept"


async def test_characters_that_postgresql_does_not_know(plane: Plane) -> None:
    job_id = await plane.started()
    failure = {"message": "broken \0 pipe", "traceback": "\0"}
    assert (await plane.report(job_id, failure=failure)).status_code == 204
    assert (await plane.job(job_id))["failure"] == failure
    assert await plane.services.reconciler._jobs.change(
        job_id, plane.clock(), {(await plane.state(job_id))}, reason="broken \0 pipe"
    )
    assert (await plane.job(job_id))["reason"] in ("broken \ufffd pipe", "broken \0 pipe")
    assert (await plane.http.get("/v1/jobs", params={"project": "\0"})).json()["items"] == []
    problem(await plane.http.get("/v1/jobs/%00"), ProblemType.UNKNOWN_JOB)


async def test_numbers_that_need_eight_bytes(plane: Plane) -> None:
    job_id = await plane.started()
    large = 2**40
    reported = sample(large, 0, samples=large, ids=large, overlapped_ids=large)
    assert (await plane.report(job_id, reported, dropped=large)).status_code == 204
    page = (await plane.http.get(f"/v1/jobs/{job_id}/steps", params={"rank": 0, "after": large - 1})).json()
    assert [(step["step"], step["ids"]) for step in page["items"]] == [(large, large)]
    assert (await plane.job(job_id))["dropped_samples"] == large
    for query in ("steps?rank=2147483648", "steps?after=9007199254740992"):
        assert (await plane.http.get(f"/v1/jobs/{job_id}/{query}")).json()["items"] == []
    for route in ("/v1/jobs", "/v1/audit"):
        assert (await plane.http.get(route, params={"cursor": "9" * 18})).status_code == 200
