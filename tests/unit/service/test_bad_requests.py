"""The table of bad requests is true, and so is the page that is made of it."""

from pathlib import Path

import httpx
import pytest

from service.settings import Settings
from tests.unit.service.bad_requests import GOOD, JOB_FILES, PAGE, REQUESTS, YAML, BadRequest, page
from tests.unit.service.callers import Callers
from tests.unit.service.conftest import Plane
from tests.unit.service.test_api import problem

pytestmark = pytest.mark.anyio


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path / "tokens.yaml")


@pytest.fixture
def settings(settings: Settings, callers: Callers) -> Settings:
    return settings.model_copy(update={"tokens_file": callers.file})


async def running(plane: Plane, callers: Callers) -> str:
    """A job of the project `ranking` that runs, submitted with a key; its id."""
    headers = {**YAML, **callers.headers("ci"), "Idempotency-Key": "used"}
    answer = await plane.http.post("/v1/jobs", content=GOOD.replace("tiny", "first"), headers=headers)
    assert answer.status_code == 202, answer.text
    await plane.rounds(1)
    job_id = answer.json()["id"]
    assert isinstance(job_id, str)
    return job_id


async def ask(plane: Plane, callers: Callers, bad: BadRequest, job_id: str) -> httpx.Response:
    method, path = bad.request.split(" ")
    headers = bad.headers if bad.caller is None else {**callers.headers(bad.caller), **bad.headers}
    return await plane.http.request(method, path.replace("JOB", job_id), content=bad.body or None, headers=headers)


async def test_bad_requests_are_answered_as_the_table_says(plane: Plane, callers: Callers) -> None:
    job_id = await running(plane, callers)
    others = []
    for bad in (*JOB_FILES, *REQUESTS):
        document = problem(await ask(plane, callers, bad, job_id), bad.kind)
        message = document["detail"].replace(job_id, "JOB")
        if message != bad.message:
            others.append((bad.what, message))
    assert others == []
    jobs = await plane.http.get("/v1/jobs", headers=callers.headers("root"))
    assert [job["id"] for job in jobs.json()["items"]] == [job_id]


def test_the_page_is_made_of_the_table() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m tests.unit.service.bad_requests"


def test_no_two_rows_are_the_same() -> None:
    names = [bad.what for bad in (*JOB_FILES, *REQUESTS)]
    assert len(names) == len(set(names)) >= 30
