"""Who may do what: every route against every role, foreign projects, and tokens that are missing or wrong."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from structlog.typing import EventDict

from service.app import create_app
from service.problems import ProblemType
from service.security.roles import NEEDS, NO_TOKENS, Role, need_of
from service.settings import Settings
from tests.unit.service.callers import WHO, Callers
from tests.unit.service.conftest import JOB, Plane
from tests.unit.service.fakes import FakeRay
from tests.unit.service.test_api import problem
from tests.unit.service.webhooks.receiver import webhooks_file

pytestmark = pytest.mark.anyio

MINE = JOB | {"queue": {"project": "ranking"}}
# The page, if it is not built.
STATIC = {"GET /"}


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path / "tokens.yaml")


@pytest.fixture
def settings(settings: Settings, callers: Callers, tmp_path: Path) -> Settings:
    # Nothing listens there.
    webhooks = webhooks_file(tmp_path / "webhooks.yaml", {"ops": {"url": "http://127.0.0.1:9"}})
    return settings.model_copy(update={"tokens_file": callers.file, "webhooks_file": webhooks})


def routes(app: FastAPI) -> list[str]:
    """Every route as `METHOD /path`."""
    found = []
    for route in iter_route_contexts(app.routes):
        assert route.path is not None, f"{route} is no route that this test knows"
        found += [f"{method} {route.path}" for method in route.methods or ("ANY",)]
    return found


def app_of(plane: Plane) -> FastAPI:
    app = create_app(plane.settings, FakeRay())
    app.state.services = plane.services
    return app


async def ask(plane: Plane, route: str, job_id: str = "job-1", headers: dict[str, str] | None = None) -> httpx.Response:
    method, path = route.split(" ")
    return await plane.http.request(method, path.format(job_id=job_id, name="ops"), headers=headers)


async def submitted(plane: Plane, callers: Callers, spec: dict[str, Any] = MINE) -> str:
    answer = await plane.http.post("/v1/jobs", json=spec, headers=callers.headers("root"))
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["id"]
    assert isinstance(job_id, str)
    return job_id


async def test_every_route_has_a_role(plane: Plane) -> None:
    """A new route needs a line in `service/security/roles.py`, and is for admins only until then."""
    assert set(routes(app_of(plane))) - STATIC == set(NEEDS)
    assert need_of("GET", "/v1/new") == need_of("GET", "/v1/audit")


async def test_every_route_asks_for_a_token(plane: Plane) -> None:
    opened = {"GET /livez", "GET /readyz"}
    for route in set(routes(app_of(plane))) - STATIC:
        answer = await ask(plane, route)
        if route in opened:
            assert answer.status_code == 200, route
        else:
            problem(answer, ProblemType.UNAUTHORIZED)
            assert "internal" in route or answer.headers["WWW-Authenticate"] == "Bearer"
            assert "internal" in route or "OVERLANE_TOKEN" in answer.json()["detail"]


@pytest.mark.parametrize("name", WHO)
async def test_every_role_on_every_route(plane: Plane, callers: Callers, name: str) -> None:
    role, project = WHO[name]
    order = [Role.VIEWER, Role.SUBMITTER, Role.ADMIN]
    for route, need in NEEDS.items():
        if need.role is None or "events" in route:
            continue
        job_id = await submitted(plane, callers)
        answer = await ask(plane, route, job_id, callers.headers(name))
        if order.index(role) < order.index(need.role) or (need.every_project and project != "*"):
            assert "ask an admin" in problem(answer, ProblemType.FORBIDDEN)["detail"]
        elif "{job_id}" in route and project not in ("*", "ranking"):
            problem(answer, ProblemType.UNKNOWN_JOB)
        else:
            assert answer.status_code not in (401, 403, 404, 500), (route, answer.text)


async def test_a_foreign_job_looks_like_none_on_every_route(plane: Plane, callers: Callers) -> None:
    job_id = await submitted(plane, callers)
    for route in (route for route in NEEDS if "{job_id}" in route and "internal" not in route):
        foreign = await ask(plane, route, job_id, callers.headers("rival"))
        missing = await ask(plane, route, "job-20260102-030405-nobody", callers.headers("rival"))
        assert foreign.status_code == missing.status_code == 404, route
        assert foreign.text.replace(job_id, "job-20260102-030405-nobody") == missing.text
    assert (await plane.services.jobs.get(NO_TOKENS, job_id)).state == "queued"


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer ", "Bearer wrong", "Basic dXNlcjpwYXNz", "wrong", "", "Bearer \u00e9".encode("latin-1")],
)
async def test_wrong_tokens(plane: Plane, callers: Callers, header: str | bytes) -> None:
    value = header if isinstance(header, bytes) else header.encode()
    answer = await plane.http.get("/v1/jobs", headers=[(b"Authorization", value)])
    problem(answer, ProblemType.UNAUTHORIZED)


async def test_a_token_counts_in_the_header_only(plane: Plane, callers: Callers) -> None:
    token = callers.tokens["root"]
    problem(await plane.http.get("/v1/jobs", params={"token": token}), ProblemType.UNAUTHORIZED)
    problem(await plane.http.get("/v1/jobs", headers={"Cookie": f"token={token}"}), ProblemType.UNAUTHORIZED)
    problem(await plane.http.get("/v1/jobs", headers={"Authorization": token}), ProblemType.UNAUTHORIZED)


async def test_a_submit_into_another_project(plane: Plane, callers: Callers) -> None:
    answer = await plane.http.post("/v1/jobs", json=JOB, headers=callers.headers("ci"))
    detail = problem(answer, ProblemType.FORBIDDEN)["detail"]
    assert detail == "this token submits into 'ranking', not into 'default'; set queue.project: ranking"
    assert (await plane.http.get("/v1/jobs", headers=callers.headers("root"))).json()["items"] == []
    answer = await plane.http.post("/v1/jobs", json=MINE, headers=callers.headers("ci"))
    assert answer.status_code == 202


async def test_the_list_shows_what_the_token_may_see(plane: Plane, callers: Callers) -> None:
    mine = await submitted(plane, callers)
    foreign = await submitted(plane, callers, JOB | {"queue": {"project": "ads"}})

    async def listed(name: str, **query: str) -> list[str]:
        answer = await plane.http.get("/v1/jobs", params=query, headers=callers.headers(name))
        return [job["id"] for job in answer.json()["items"]]

    assert await listed("root") == await listed("prometheus") == [foreign, mine]
    assert await listed("ci") == await listed("looker", project="ranking") == [mine]
    assert await listed("rival") == await listed("root", project="ads") == [foreign]
    assert await listed("rival", project="ranking") == await listed("ci", project="ads") == []
    for number in range(1, 4):
        assert mine not in await listed("rival", cursor=str(number))


async def test_pages_go_on_within_the_project(plane: Plane, callers: Callers) -> None:
    mine = [await submitted(plane, callers, spec) for spec in (MINE, JOB, MINE, JOB, MINE)][::2]
    seen, cursor = [], None
    while True:
        query = {"limit": "1"} | ({"cursor": cursor} if cursor else {})
        page = (await plane.http.get("/v1/jobs", params=query, headers=callers.headers("looker"))).json()
        seen += [job["id"] for job in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == mine[::-1]


async def test_keys_of_projects_do_not_meet(plane: Plane, callers: Callers) -> None:
    theirs = JOB | {"queue": {"project": "ads"}}
    answers = []
    for name, spec in (("ci", MINE), ("rival", theirs), ("ci", MINE)):
        headers = callers.headers(name) | {"Idempotency-Key": "nightly"}
        answers.append(await plane.http.post("/v1/jobs", json=spec, headers=headers))
    assert [answer.status_code for answer in answers] == [202, 202, 202]
    assert answers[0].json()["id"] == answers[2].json()["id"] != answers[1].json()["id"]
    headers = callers.headers("ci") | {"Idempotency-Key": "nightly"}
    again = await plane.http.post("/v1/jobs", json=MINE | {"name": "other"}, headers=headers)
    assert "'nightly' was used for" in problem(again, ProblemType.KEY_REUSED)["detail"]


async def test_the_longest_key_fits_behind_the_longest_project(plane: Plane, callers: Callers) -> None:
    headers = callers.headers("root") | {"Idempotency-Key": "k" * 191}
    spec = JOB | {"queue": {"project": "p" * 63}}
    assert (await plane.http.post("/v1/jobs", json=spec, headers=headers)).status_code == 202
    headers["Idempotency-Key"] += "k"
    problem(await plane.http.post("/v1/jobs", json=spec, headers=headers), ProblemType.INVALID_REQUEST)


async def test_a_token_that_is_taken_away(plane: Plane, callers: Callers) -> None:
    assert (await plane.http.get("/v1/jobs", headers=callers.headers("ci"))).status_code == 200
    del callers.entries["ci"]
    callers.write()
    problem(await plane.http.get("/v1/jobs", headers=callers.headers("ci")), ProblemType.UNAUTHORIZED)


async def test_a_tokens_file_that_was_spoilt(plane: Plane, callers: Callers) -> None:
    callers.file.write_text("nonsense")
    for path in ("/v1/jobs", "/readyz"):
        document = problem(await plane.http.get(path, headers=callers.headers("root")), ProblemType.NOT_READY)
        assert document["detail"] == "the tokens file of the service cannot be used; its log says why"
    assert (await plane.http.get("/livez")).status_code == 200
    callers.write()
    assert (await plane.http.get("/v1/jobs", headers=callers.headers("root"))).status_code == 200


async def test_reports_come_in_with_the_token_of_the_job_alone(plane: Plane, callers: Callers) -> None:
    job_id = await submitted(plane, callers)
    await plane.rounds(1)
    path = f"/internal/v1/jobs/{job_id}/reports"
    for headers in ({}, callers.headers("root"), {"Authorization": plane.ray.token(job_id)}):
        refused = await plane.http.post(path, content="no report", headers=headers)
        unknown = await plane.http.post(path.replace(job_id, "job-0"), content="no report", headers=headers)
        problem(refused, ProblemType.UNAUTHORIZED)
        assert refused.text.replace(job_id, "job-0") == unknown.text
    assert (await plane.report(job_id)).status_code == 204
    report_token = {"Authorization": f"Bearer {plane.ray.token(job_id)}"}
    problem(await plane.http.get(f"/v1/jobs/{job_id}", headers=report_token), ProblemType.UNAUTHORIZED)


async def test_a_test_of_a_webhook_is_logged_with_its_caller(
    plane: Plane, callers: Callers, events: list[EventDict]
) -> None:
    await plane.http.post("/v1/webhooks/ops/ping", headers=callers.headers("root"))
    [event] = [event for event in events if event["event"] == "webhook_tested"]
    assert (event["caller"], event["endpoint"]) == ("root", "ops")


async def test_a_refusal_is_logged_with_its_caller(plane: Plane, callers: Callers, events: list[EventDict]) -> None:
    job_id = await submitted(plane, callers)
    await plane.http.post(f"/v1/jobs/{job_id}/stop", headers=callers.headers("looker"))
    [event] = [event for event in events if event["event"] == "request_refused"]
    assert (event["caller"], event["method"], event["path"]) == ("looker", "POST", "/v1/jobs/{job_id}/stop")


async def test_without_a_tokens_file_nobody_is_asked(plane: Plane) -> None:
    open_plane = plane.settings.model_copy(update={"tokens_file": None})
    app = create_app(open_plane, FakeRay())
    services = type(plane.services).build(open_plane, plane.services.database, FakeRay())
    app.state.services = services
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8420") as http:
        for path in ("/v1/jobs", "/v1/audit", "/metrics", "/openapi.json"):
            assert (await http.get(path)).status_code == 200
