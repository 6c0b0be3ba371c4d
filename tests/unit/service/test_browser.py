"""Headers that keep other pages away stand on every answer."""

from pathlib import Path

import pytest

from service.browser import ANSWER_HEADERS
from service.security.roles import NEEDS
from tests.unit.service.conftest import Plane

pytestmark = pytest.mark.anyio


async def test_every_answer_has_them(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("broken")

    job_id = await plane.submit()
    answers = []
    for route in NEEDS:
        method, path = route.split(" ")
        if "events" not in path:
            answers.append(await plane.http.request(method, path.replace("{job_id}", job_id)))
    answers += [await plane.http.get(path) for path in ("/", "/nothing", "/v1/jobs?limit=0", "/v1/jobs/job-0")]
    answers.append(await plane.http.get("/v1/jobs", headers={"Host": "evil.example"}))
    answers.append(await plane.http.get("/v1/jobs", headers={"Origin": "https://evil.example"}))
    answers.append(await plane.http.get("/v1/jobs", headers={"X-Long": "x" * 100_000}))
    answers.append(await plane.http.options("/v1/jobs", headers={"Access-Control-Request-Method": "GET"}))
    plane.ray.away = True
    answers.append(await plane.http.get("/readyz"))
    monkeypatch.setattr(plane.services.jobs, "get", broken)
    answers.append(await plane.http.get(f"/v1/jobs/{job_id}"))
    assert {answer.status_code for answer in answers} >= {200, 202, 401, 403, 404, 405, 409, 422, 431, 500, 503}
    for answer in answers:
        for name, value in ANSWER_HEADERS.items():
            assert answer.headers.get_list(name) == [value], (answer.request.url, name)
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert "server" not in answer.headers


def test_the_policy_allows_nothing_but_our_own() -> None:
    policy = dict(part.strip().split(" ", 1) for part in ANSWER_HEADERS["Content-Security-Policy"].split(";"))
    assert policy.pop("default-src") == "'none'"
    assert set(policy.values()) == {"'self'", "'none'"}


def test_the_page_has_the_policy_within() -> None:
    """So it holds also where something else serves the page; what frames it only a header can say."""
    page = (Path(__file__).parents[3] / "service/dashboard/index.html").read_text()
    policy = ANSWER_HEADERS["Content-Security-Policy"].removesuffix("; frame-ancestors 'none'")
    assert f'content="{policy}"' in page
