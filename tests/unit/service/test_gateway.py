"""What is made of Ray's answers, which are those of Ray 2.60."""

import json
from collections.abc import Callable

import httpx
import pytest

from service.cluster.gateway import (
    HttpRayGateway,
    RayJob,
    RayNode,
    RayRefusedError,
    RayResources,
    RayStatus,
    RaySubmission,
    RayUnavailableError,
)
from service.jobs.room import Room

pytestmark = pytest.mark.anyio

NODES = {
    "result": True,
    "data": {
        "result": {
            "total": 2,
            "result": [
                {
                    "node_id": "aa",
                    "node_ip": "10.0.0.1",
                    "is_head_node": True,
                    "state": "ALIVE",
                    "resources_total": {"CPU": 2.0, "memory": 1e9, "node:10.0.0.1": 1.0},
                },
                {"node_id": "bb", "node_ip": "10.0.0.2", "is_head_node": False, "state": "DEAD", "resources_total": {}},
            ],
        }
    },
}
FRESH_HEAD = {"result": True, "data": {"autoscalingStatus": None, "clusterStatus": None}}
BUSY_HEAD = {"data": {"clusterStatus": {"loadMetricsReport": {"usage": {"CPU": [1.5, 2.0], "memory": [0.0, 1e9]}}}}}


def gateway(answer: Callable[[httpx.Request], httpx.Response]) -> HttpRayGateway:
    return HttpRayGateway("http://ray.test:8265/", "secret", httpx.MockTransport(answer))


async def test_submit_sends_id_command_environment_and_token() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"job_id": "j", "submission_id": "j"})

    await gateway(answer).submit(RaySubmission("j", "true", {"A": "1"}, {"b": "2"}))
    [request] = seen
    assert str(request.url) == "http://ray.test:8265/api/jobs/"
    assert request.headers["Authorization"] == "Bearer secret"
    assert json.loads(request.content) == {
        "submission_id": "j", "entrypoint": "true", "runtime_env": {"env_vars": {"A": "1"}}, "metadata": {"b": "2"},
    }  # fmt: skip


async def test_a_refusal_is_the_last_line_of_rays_traceback() -> None:
    text = 'Traceback (most recent call last):\n  File "x"\nValueError: Job with submission_id j already exists.\n'
    with pytest.raises(RayRefusedError, match=r"^ValueError: Job with submission_id j already exists\.$"):
        await gateway(lambda _: httpx.Response(500, text=text)).submit(RaySubmission("j", "true", {}))


@pytest.mark.parametrize(
    "fresh", [FRESH_HEAD, {"data": {"clusterStatus": {"loadMetricsReport": {"usage": {}}}}}], ids=["none", "empty"]
)
async def test_resources_of_a_head_that_has_just_started(fresh: object) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=NODES if request.url.path == "/api/v0/nodes" else fresh)

    assert await gateway(answer).resources() == RayResources((RayNode("aa", "10.0.0.1", True, {"CPU": 2.0}),), {})


async def test_resources_in_use() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=NODES if request.url.path == "/api/v0/nodes" else BUSY_HEAD)

    assert (await gateway(answer).resources()).used == {"CPU": 1.5}


async def test_resources_in_use_by_node() -> None:
    report = {"usage": {"CPU": [1.5, 2.0]}, "usageByNode": {"aa": {"CPU": [1.5, 2.0], "memory": [0.0, 1e9]}}}

    def answer(request: httpx.Request) -> httpx.Response:
        busy = {"data": {"clusterStatus": {"loadMetricsReport": report}}}
        return httpx.Response(200, json=NODES if request.url.path == "/api/v0/nodes" else busy)

    found = await gateway(answer).resources()
    assert found.used_at == {"aa": {"CPU": 1.5}}
    assert Room.of(found, []).free["CPU"] == 0.5


async def test_runs_are_those_that_were_submitted() -> None:
    submitted = {"type": "SUBMISSION", "submission_id": "by-hand", "job_id": None, "status": "RUNNING", "message": "x"}
    submitted |= {"entrypoint": "python train.py", "start_time": 5000, "end_time": 0, "runtime_env": {"env_vars": {}}}
    driver = {"type": "DRIVER", "submission_id": None, "job_id": "01", "status": "RUNNING", "entrypoint": "python"}
    found = await gateway(lambda _: httpx.Response(200, json=[submitted, driver])).runs()
    assert [(run.submission_id, run.status, run.entrypoint, run.start_time) for run in found] == [
        ("by-hand", RayStatus.RUNNING, "python train.py", 5000)
    ]


async def test_forgetting_a_job() -> None:
    seen: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path))
        return httpx.Response({"gone": 404, "alive": 500}.get(request.url.path.rpartition("/")[2], 200), text="no\n")

    for job_id in ("ended", "gone"):
        await gateway(answer).forget(job_id)
    with pytest.raises(RayUnavailableError, match="HTTP 500: no"):
        await gateway(answer).forget("alive")
    assert seen == [("DELETE", f"/api/jobs/{job_id}") for job_id in ("ended", "gone", "alive")]


async def test_unknown_and_known_jobs() -> None:
    missing = gateway(lambda _: httpx.Response(404, text="Job j does not exist"))
    assert await missing.job("j") is None
    assert await missing.logs("j") is None
    await missing.stop("j")
    known = gateway(lambda _: httpx.Response(200, json={"status": "FAILED", "message": "exit code 1", "type": "x"}))
    assert await known.job("j") == RayJob(status=RayStatus.FAILED, message="exit code 1")


def _refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_refuse, "ray.test:8265 does not answer: refused"),
        (lambda _: httpx.Response(401, text="Unauthorized"), "wants another token"),
        (lambda _: httpx.Response(503, text="GCS is away"), "HTTP 503: GCS is away"),
        (lambda _: httpx.Response(200, text="<html>"), "did not answer as Ray does"),
    ],
)
async def test_whatever_is_not_rays_answer_means_unavailable(
    answer: Callable[[httpx.Request], httpx.Response], words: str
) -> None:
    broken = gateway(answer)
    for question in (broken.job, broken.logs):
        with pytest.raises(RayUnavailableError, match=words):
            await question("j")
    with pytest.raises(RayUnavailableError, match=words):
        await broken.resources()


@pytest.mark.parametrize(("hold_s", "asked"), [(3600.0, 1), (-1.0, 2)])
async def test_ray_is_not_asked_anew_what_is_in_use_for_every_submission(
    monkeypatch: pytest.MonkeyPatch, hold_s: float, asked: int
) -> None:
    monkeypatch.setattr("service.cluster.gateway._RESOURCES_HOLD_S", hold_s)
    listings = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("nodes"):
            listings.append(request)
            return httpx.Response(200, json={"data": {"result": {"result": []}}})
        return httpx.Response(200, json={"data": {"clusterStatus": None}})

    ray = gateway(answer)
    assert await ray.resources() == await ray.resources()
    assert len(listings) == asked
