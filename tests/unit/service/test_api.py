"""The routes of jobs: what is accepted, what is refused and how."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.types import Message

from service.app import create_app
from service.browser import ANSWER_HEADERS
from service.cluster.gateway import RayStatus
from service.problems import MEDIA_TYPE, ProblemType
from service.services import Services
from service.settings import Settings
from service.store.database import Database
from tests.unit.service.conftest import JOB, Plane
from tests.unit.service.fakes import FakeRay

pytestmark = pytest.mark.anyio


def problem(answer: httpx.Response, kind: ProblemType) -> dict[str, Any]:
    """Check that the answer is this problem, in the form of RFC 9457; its document."""
    document = answer.json()
    assert isinstance(document, dict)
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert (answer.status_code, document["status"], document["type"]) == (kind.status, kind.status, kind.urn)
    assert document["title"] == kind.title
    assert document["instance"] == answer.request.url.path
    assert document["detail"]
    return document


async def recorded(plane: Plane) -> int:
    return len((await plane.http.get("/v1/jobs")).json()["items"])


async def test_submit_answers_with_the_job_and_its_address(plane: Plane) -> None:
    answer = await plane.http.post("/v1/jobs", json=JOB)
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert job["id"].startswith("job-20260102-030405-")
    assert job["submitted_at"] == "2026-01-02T03:04:05.000Z"
    assert (job["name"], job["project"], job["state"], job["reason"]) == ("tiny", "default", "queued", None)
    assert job["resources"] == {"workers": 2, "cpus": 2.0, "gpus": 0.0, "max_workers": None}
    assert job["spec"]["training"]["schedule"] == "prioritized"
    assert job == await plane.job(job["id"])


async def test_submit_yaml(plane: Plane) -> None:
    headers = {"Content-Type": "application/yaml; charset=utf-8"}
    answer = await plane.http.post("/v1/jobs", content=yaml.safe_dump(JOB), headers=headers)
    assert answer.status_code == 202
    assert answer.json()["spec"]["name"] == "tiny"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"training": {"batchsize": 3}}, "training.batchsize", "did you mean 'batch_size'?"),
        ({"worker": {}}, "worker", "did you mean 'workers'?"),
        ({"workers": {"count": 0}}, "workers.count", "greater than or equal to 1"),
        ({"data": {"source": "nowhere"}}, "data.source", "nowhere"),
        ({"name": "Not A Name"}, "name", "pattern"),
    ],
)
async def test_an_invalid_job_names_field_and_cure(
    plane: Plane, changes: dict[str, Any], field: str, words: str
) -> None:
    document = problem(await plane.http.post("/v1/jobs", json=JOB | changes), ProblemType.INVALID_JOB)
    [fault] = document["errors"]
    assert fault["field"] == field
    assert words in fault["message"]
    assert await recorded(plane) == 0


async def test_every_fault_is_listed(plane: Plane) -> None:
    body = {"name": "tiny", "training": {"batchsize": 3, "epochs": 0}, "wrkers": {}}
    document = problem(await plane.http.post("/v1/jobs", json=body), ProblemType.INVALID_JOB)
    assert {fault["field"] for fault in document["errors"]} == {"training.batchsize", "training.epochs", "wrkers"}


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff\xfe", b"null", b"", b"[" * 60_000])
async def test_a_body_that_is_no_job_file(plane: Plane, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    problem(await plane.http.post("/v1/jobs", content=body, headers=headers), ProblemType.INVALID_JOB)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("training: {dense_lr: .inf}", "training.dense_lr: must be a finite number"),
        ("model: {params: {a: [1, .nan]}}", "model.params.a.1: must be a finite number"),
        ("model: {params: {day: 2026-01-02}}", "model.params.day: a date has no place in JSON"),
        ("model: {params: {a: !!binary aGk=}}", "model.params.a: a bytes has no place in JSON"),
        ("model: {params: {day: 2020-13-45}}", "month must be in 1..12"),
        ("model: {params: {a: " + "[" * 5_000 + "]" * 5_000 + "}}", "nested too deep"),
        ("queue: {priority: 99999999999999999999}", "queue.priority: "),
        ("model: {params: {a: &a [*a]}}", "more than 10000 values"),
        ("model: {params: {a: &a [x, x], b: &b [*a, *a]" + "".join(
            f", {chr(c + 1)}: &{chr(c + 1)} [*{chr(c)}, *{chr(c)}]" for c in range(ord("b"), ord("x"))) + "}}",
         "more than 10000 values"),
    ],
)  # fmt: skip
async def test_yaml_that_is_more_than_json(plane: Plane, lines: str, fault: str) -> None:
    headers = {"Content-Type": "application/yaml"}
    answer = await plane.http.post("/v1/jobs", content=f"name: tiny\n{lines}\n", headers=headers)
    assert fault in problem(answer, ProblemType.INVALID_JOB)["detail"]
    assert await recorded(plane) == 0


async def test_more_than_the_cluster_can_ever_hold(plane: Plane) -> None:
    answer = await plane.http.post("/v1/jobs", json=JOB | {"workers": {"count": 8}})
    document = problem(answer, ProblemType.INFEASIBLE)
    assert document["detail"] == "needs 8 CPUs for 8 workers, the cluster has 2"
    assert await recorded(plane) == 0


async def test_an_elastic_group_whose_smallest_never_fits_is_refused(plane: Plane) -> None:
    answer = await plane.http.post("/v1/jobs", json=JOB | {"workers": {"count": {"min": 3, "max": 4}}})
    detail = problem(answer, ProblemType.INFEASIBLE)["detail"]
    assert detail == "needs 3 CPUs for at least 3 workers, the cluster has 2"


async def test_a_group_that_no_single_node_can_hold(plane: Plane) -> None:
    plane.ray.cpus = 3
    answer = await plane.http.post("/v1/jobs", json=JOB | {"workers": {"count": 2, "cpus": 1.5}})
    assert answer.status_code == 202
    answer = await plane.http.post("/v1/jobs", json=JOB | {"workers": {"count": 1, "cpus": 1, "gpus": 1}})
    assert problem(answer, ProblemType.INFEASIBLE)["detail"] == "needs 1 GPU for 1 worker, the cluster has 0"


async def test_submit_without_ray_records_nothing(plane: Plane) -> None:
    plane.ray.away = True
    answer = await plane.http.post("/v1/jobs", json=JOB)
    problem(answer, ProblemType.RAY_UNAVAILABLE)
    assert answer.headers["Retry-After"] == "5"
    assert await recorded(plane) == 0


async def test_an_unknown_format_is_refused(plane: Plane) -> None:
    answer = await plane.http.post("/v1/jobs", content=b"name: tiny", headers={"Content-Type": "text/plain"})
    problem(answer, ProblemType.UNSUPPORTED_MEDIA_TYPE)


async def test_a_job_file_that_no_environment_variable_holds(plane: Plane) -> None:
    answer = await plane.http.post("/v1/jobs", json=JOB | {"model": {"params": {"x": "y" * 70_000}}})
    problem(answer, ProblemType.TOO_LARGE)


async def test_a_client_that_goes_away_is_no_failure_of_the_service(settings: Settings) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/jobs", "query_string": b"", "headers": headers}
    app = create_app(settings, FakeRay())
    app.state.services = Services.build(settings, Database(create_async_engine("sqlite+aiosqlite://")), FakeRay())
    await app(scope, receive, send)
    assert sent[0]["status"] == ProblemType.INVALID_REQUEST.status


async def test_a_key_replays_the_first_answer(plane: Plane) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = await plane.http.post("/v1/jobs", json=JOB, headers=headers)
    await plane.rounds(1)
    plane.ray.away = True
    second = await plane.http.post("/v1/jobs", json=JOB, headers=headers)
    assert second.status_code == 202
    assert second.content == first.content
    assert second.headers["Location"] == first.headers["Location"]
    assert await recorded(plane) == 1


async def test_a_key_with_another_body(plane: Plane) -> None:
    headers = {"Idempotency-Key": "k1"}
    await plane.http.post("/v1/jobs", json=JOB, headers=headers)
    other = await plane.http.post("/v1/jobs", json=JOB | {"name": "other"}, headers=headers)
    problem(other, ProblemType.KEY_REUSED)
    assert await recorded(plane) == 1


async def test_a_key_that_two_requests_bring_at_once(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second looks the key up before the first has recorded it, and meets it when it records."""
    headers = {"Idempotency-Key": "k1"}
    first = await plane.http.post("/v1/jobs", json=JOB, headers=headers)
    lookup = plane.services.jobs._jobs.submission
    answers = iter([None])

    async def late(key: str) -> Any:
        return next(answers, ...) and await lookup(key)

    monkeypatch.setattr(plane.services.jobs._jobs, "submission", late)
    second = await plane.http.post("/v1/jobs", json=JOB, headers=headers)
    assert second.content == first.content
    assert await recorded(plane) == 1


async def test_pages_are_newest_first_and_complete(plane: Plane) -> None:
    ids = [await plane.submit() for _ in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    sizes = []
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = (await plane.http.get("/v1/jobs", params=query)).json()
        seen += [job["id"] for job in page["items"]]
        sizes.append(len(page["items"]))
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    assert sizes == [2, 2, 1]


async def test_pages_can_be_narrowed(plane: Plane) -> None:
    mine = await plane.submit(queue={"project": "mine"})
    await plane.submit()
    await plane.http.post(f"/v1/jobs/{mine}/stop")
    for query in ({"project": "mine"}, {"state": "stopping"}):
        items = (await plane.http.get("/v1/jobs", params=query)).json()["items"]
        assert [job["id"] for job in items] == [mine]


@pytest.mark.parametrize("query", ["cursor=abc", "cursor=-1", "cursor=99999999999999999999", "limit=0", "state=done"])
async def test_a_list_query_that_makes_no_sense(plane: Plane, query: str) -> None:
    document = problem(await plane.http.get(f"/v1/jobs?{query}"), ProblemType.INVALID_REQUEST)
    assert document["errors"][0]["field"] == query.partition("=")[0]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("POST", "/stop"),
        ("DELETE", ""),
        ("GET", "/logs"),
        ("GET", "/logs?follow=1"),
        ("GET", "/steps"),
        ("GET", "/overlap"),
    ],
)
async def test_an_unknown_job(plane: Plane, method: str, path: str) -> None:
    problem(await plane.http.request(method, f"/v1/jobs/job-nope{path}"), ProblemType.UNKNOWN_JOB)


async def test_delete_only_what_has_ended(plane: Plane) -> None:
    job_id = await plane.with_steps(2)
    problem(await plane.http.delete(f"/v1/jobs/{job_id}"), ProblemType.JOB_ACTIVE)
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    log_file = plane.settings.logs / f"{job_id}.log"
    assert log_file.exists()
    assert (await plane.http.delete(f"/v1/jobs/{job_id}")).status_code == 204
    problem(await plane.http.delete(f"/v1/jobs/{job_id}"), ProblemType.UNKNOWN_JOB)
    assert not log_file.exists()
    async with plane.services.database.read() as connection:
        assert (await connection.exec_driver_sql("SELECT count(*) FROM steps")).scalar() == 0


async def test_addresses_and_methods_that_do_not_exist(plane: Plane) -> None:
    problem(await plane.http.get("/v1/nothing"), ProblemType.NOT_FOUND)
    problem(await plane.http.put("/v1/jobs", json=JOB), ProblemType.METHOD_NOT_ALLOWED)


async def test_an_unexpected_error_tells_nothing_of_the_inside(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(plane.services.jobs, "get", broken)
    answer = await plane.http.get("/v1/jobs/job-1")
    problem(answer, ProblemType.INTERNAL)
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[127.0.0.1"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
    ],
)
async def test_pages_of_others_cannot_use_the_service(plane: Plane, headers: dict[str, str]) -> None:
    job_id = await plane.submit()
    problem(await plane.http.post(f"/v1/jobs/{job_id}/stop", headers=headers), ProblemType.FOREIGN_ORIGIN)
    assert (await plane.job(job_id))["state"] == "queued"


@pytest.mark.parametrize("host", ["localhost:8420", "[::1]:8420", "127.0.0.1"])
async def test_own_pages_can(plane: Plane, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert (await plane.http.get("/livez", headers=headers)).status_code == 200


async def test_probes(plane: Plane) -> None:
    assert (await plane.http.get("/livez")).json() == {"status": "ok"}
    assert (await plane.http.get("/readyz")).json() == {"status": "ok"}
    plane.ray.away = True
    document = problem(await plane.http.get("/readyz"), ProblemType.NOT_READY)
    assert document["errors"] == [{"field": "ray", "message": "ray.test does not answer"}]
    assert (await plane.http.get("/livez")).status_code == 200


async def test_cluster(plane: Plane) -> None:
    await plane.started(workers={"count": 1})
    cluster = (await plane.http.get("/v1/cluster")).json()
    assert cluster["resources"] == {"total": {"CPU": 2.0, "GPU": 0.0}, "available": {"CPU": 1.0, "GPU": 0.0}}
    assert cluster["jobs"]["starting"] == 1
    assert cluster["jobs"]["queued"] == 0
    assert cluster["ray_address"] == "http://ray.test:8265"
    plane.ray.away = True
    problem(await plane.http.get("/v1/cluster"), ProblemType.RAY_UNAVAILABLE)


async def test_the_page_is_missing(plane: Plane) -> None:
    answer = await plane.http.get("/")
    assert answer.status_code == 200
    assert "make setup" in answer.text


async def test_the_page_is_served(settings: Settings) -> None:
    page: Path = settings.dashboard
    page.mkdir()
    (page / "index.html").write_text("<title>Overlane</title>")
    (page / "app.js").write_text("1")
    ray = FakeRay()
    app = create_app(settings, ray)
    database = await Database.open(settings.database)
    app.state.services = Services.build(settings, database, ray)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8420") as http:
        answer = await http.get("/", headers={"Accept": "text/html"})
        assert (answer.status_code, answer.text) == (200, "<title>Overlane</title>")
        assert answer.headers["content-security-policy"] == ANSWER_HEADERS["Content-Security-Policy"]
        problem(await http.get("/v1/nothing", headers={"Accept": "text/html"}), ProblemType.NOT_FOUND)
        assert (await http.get("/app.js")).text == "1"
        problem(await http.get("/missing.js"), ProblemType.NOT_FOUND)
        problem(await http.put("/v1/jobs", json=JOB), ProblemType.METHOD_NOT_ALLOWED)
        assert (await http.get("/v1/jobs")).json() == {"items": [], "next_cursor": None}
    await database.close()


async def test_openapi_describes_the_job_file(plane: Plane) -> None:
    document = (await plane.http.get("/openapi.json")).json()
    content = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "application/yaml"}
    assert "internal" not in json.dumps(list(document["paths"]))
