"""Runs that somebody submitted to Ray directly, and runs of jobs that have ended."""

import pytest

from service.cluster.gateway import RayJob, RayRun, RayStatus
from service.models import JobState
from service.problems import ProblemType
from tests.unit.service.conftest import Plane
from tests.unit.service.test_api import problem

pytestmark = pytest.mark.anyio

BY_HAND = "python -m workers.train --job examples/movielens.yaml"


def run(name: str, status: RayStatus, started_s: int | None, ended_s: int | None = None) -> RayRun:
    times = {"start_time": None if started_s is None else started_s * 1000, "end_time": ended_s and ended_s * 1000}
    return RayRun.model_validate(
        {"submission_id": name, "status": status, "message": "as Ray says", "entrypoint": BY_HAND, **times}
    )


async def test_runs_of_others_are_shown_as_ray_tells_them(plane: Plane) -> None:
    own = await plane.started()
    plane.ray.others = [
        run("older", RayStatus.FAILED, 1_767_323_000, 1_767_323_045),
        run("newer", RayStatus.RUNNING, 1_767_323_045, 0),
        run("waits", RayStatus.PENDING, None),
    ]
    answer = await plane.http.get("/v1/runs")
    assert answer.status_code == 200
    shared = {"entrypoint": BY_HAND, "reason": None, "ended_at": None}
    assert answer.json()["items"] == [
        {**shared, "id": "newer", "state": "running", "started_at": "2026-01-02T03:04:05.000Z"},
        {**shared, "id": "older", "state": "failed", "started_at": "2026-01-02T03:03:20.000Z",
         "ended_at": "2026-01-02T03:04:05.000Z", "reason": "as Ray says"},
        {**shared, "id": "waits", "state": "starting", "started_at": None},
    ]  # fmt: skip
    assert own not in answer.text
    assert [item["id"] for item in (await plane.http.get("/v1/runs?limit=1")).json()["items"]] == ["newer"]


@pytest.mark.parametrize("away", [False, True])
async def test_a_deleted_job_is_not_taken_for_a_run_of_somebody_else(plane: Plane, away: bool) -> None:
    job_id = await plane.started()
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    plane.ray.away = away
    assert (await plane.http.delete(f"/v1/jobs/{job_id}")).status_code == 204
    plane.ray.away = False
    assert (job_id in plane.ray.jobs) is away, "a Ray that is away does not keep a job from being deleted"


async def test_runs_while_ray_is_away(plane: Plane) -> None:
    plane.ray.away = True
    problem(await plane.http.get("/v1/runs"), ProblemType.RAY_UNAVAILABLE)


async def test_runs_of_others_are_left_alone_and_those_of_ended_jobs_are_stopped(plane: Plane) -> None:
    """A submission may arrive after its job was given up."""
    ended, alive = await plane.started(workers={"count": 1}), await plane.started(workers={"count": 1})
    plane.ray.says(ended, RayStatus.FAILED)
    await plane.rounds(1)
    assert await plane.state(ended) is JobState.FAILED
    plane.ray.jobs[ended] = RayJob(status=RayStatus.RUNNING)
    plane.ray.others = [run("by-hand", RayStatus.RUNNING, 1)]
    plane.ray.calls.clear()
    await plane.rounds(1)
    assert plane.ray.calls == [], "it does not look in every round"
    plane.clock.forward(30)
    await plane.rounds(1)
    assert plane.ray.calls == [f"stop {ended}"]
    assert await plane.state(alive) is JobState.STARTING
    plane.ray.away = True
    plane.clock.forward(30)
    await plane.rounds(1)


async def test_a_dry_run_is_nobodys_run(plane: Plane) -> None:
    plane.ray.others = [run("plan-20260102-030405-0a1b2c3d", RayStatus.RUNNING, 1)]
    assert (await plane.http.get("/v1/runs")).json()["items"] == []
