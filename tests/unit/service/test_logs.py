"""Logs by byte offset, as text and as server-sent events."""

import httpx
import pytest
from structlog.typing import EventDict

from service.cluster.gateway import RayStatus
from service.jobs import logs
from service.models import NEXT_OFFSET_HEADER
from service.problems import ProblemType
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import sample
from tests.unit.service.test_api import problem

pytestmark = pytest.mark.anyio


async def read(plane: Plane, job_id: str, offset: int = 0) -> tuple[str, int]:
    answer = await plane.http.get(f"/v1/jobs/{job_id}/logs", params={"offset": offset})
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    return answer.text, int(answer.headers[NEXT_OFFSET_HEADER])


async def test_offsets_count_bytes(plane: Plane) -> None:
    job_id = await plane.started()
    assert await read(plane, job_id) == ("", 0)
    plane.ray.texts[job_id] = "größe\n"
    assert await read(plane, job_id) == ("größe\n", 8)
    plane.ray.texts[job_id] += "two\n"
    assert await read(plane, job_id, 8) == ("two\n", 12)
    assert await read(plane, job_id, 12) == ("", 12)
    assert await read(plane, job_id, 99) == ("", 12)


async def test_ray_away(plane: Plane) -> None:
    job_id = await plane.started()
    plane.ray.away = True
    problem(await plane.http.get(f"/v1/jobs/{job_id}/logs"), ProblemType.RAY_UNAVAILABLE)


async def test_an_ended_job_keeps_its_log_without_ray(plane: Plane) -> None:
    job_id = await plane.started()
    plane.ray.texts[job_id] = "all\n"
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    plane.ray.away = True
    assert await read(plane, job_id) == ("all\n", 4)


async def test_follow(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole lines while the job lives, the unfinished rest when it has ended, then `end`."""
    monkeypatch.setattr(logs, "_FOLLOW_PAUSE_S", 0)
    job_id = await plane.started()
    texts = iter(["one\ntw", "one\ntwo\nthr"])

    async def growing(_job_id: str) -> str | None:
        text = next(texts, None)
        if text is None:
            plane.ray.texts[job_id] = "one\ntwo\nthree"
            monkeypatch.undo()
            monkeypatch.setattr(logs, "_FOLLOW_PAUSE_S", 0)
            plane.ray.says(job_id, RayStatus.FAILED)
            await plane.rounds(1)
            return "one\ntwo\nthr"
        return text

    monkeypatch.setattr(plane.ray, "logs", growing)
    answer = await plane.http.get(f"/v1/jobs/{job_id}/logs?follow=1")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text == (
        "data: one\ndata: \nid: 4\n\n"
        "data: two\ndata: \nid: 8\n\n"
        ": nothing new\n\n"
        "data: three\nid: 13\n\n"
        "event: end\ndata: failed\n\n"
    )


async def test_follow_resumes_after_the_last_event(plane: Plane) -> None:
    job_id = await plane.started()
    plane.ray.texts[job_id] = "one\ntwo\n"
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    resumed: httpx.Response = await plane.http.get(f"/v1/jobs/{job_id}/logs?follow=1", headers={"Last-Event-ID": "4"})
    assert resumed.text == "data: two\ndata: \nid: 8\n\nevent: end\ndata: succeeded\n\n"


async def test_no_token_is_ever_logged(plane: Plane, events: list[EventDict]) -> None:
    job_id = await plane.started()
    token = plane.ray.token(job_id)
    await plane.report(job_id, sample(0, 0))
    await plane.http.post(f"/internal/v1/jobs/{job_id}/reports", headers={"Authorization": f"Bearer {token}"})
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    assert [event["event"] for event in events] == ["job_queued", "job_submitted", "job_ended"]
    assert token not in str(events)
