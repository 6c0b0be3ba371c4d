"""Jobs that go back to the queue: lost by Ray, or stopped for a higher priority."""

from typing import Any

import pytest

from service.cluster.gateway import RayStatus
from service.jobs.quotas import Quota, Quotas
from service.models import JobState
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import sample

pytestmark = pytest.mark.anyio

SAVES = {"checkpoint": {"every_steps": 10}}
URGENT = {"queue": {"priority": 5}}


async def running(plane: Plane, **changes: Any) -> str:
    """A job that runs and has reported a step, after Ray's figures have settled."""
    job_id = await plane.started(**changes)
    plane.ray.says(job_id, RayStatus.RUNNING)
    assert (await plane.report(job_id, sample(0, 0), sample(0, 1))).status_code == 204
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.RUNNING
    plane.clock.forward(11)
    return job_id


async def lose(plane: Plane, job_id: str) -> None:
    del plane.ray.jobs[job_id]
    await plane.rounds(1)


async def test_a_lost_job_starts_again_under_its_id(plane: Plane) -> None:
    job_id = await running(plane)
    old_token = plane.ray.token(job_id)
    await lose(plane, job_id)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("queued", "Ray has lost it (1 of retries.max=3)")
    await plane.rounds(1)
    assert plane.ray.calls == [f"submit {job_id}"] * 2
    assert plane.ray.submissions[job_id].env["OVERLANE_STORAGE"] == str(plane.settings.home / "storage")
    job = await plane.job(job_id)
    assert (job["state"], job["attempts"]) == ("starting", 2)
    assert plane.ray.token(job_id) != old_token

    plane.ray.says(job_id, RayStatus.RUNNING)
    await plane.rounds(2)
    assert await plane.state(job_id) is JobState.STARTING, "steps of the first start do not count"


async def test_what_the_first_start_still_reports_is_refused(plane: Plane) -> None:
    job_id = await running(plane)
    late = {"headers": {"Authorization": f"Bearer {plane.ray.token(job_id)}"}, "content": "{}"}
    route = f"/internal/v1/jobs/{job_id}/reports"
    await lose(plane, job_id)
    assert (await plane.http.post(route, **late)).status_code == 401
    await plane.rounds(1)
    assert (await plane.http.post(route, **late)).status_code == 401


async def test_steps_of_a_later_start_replace_those_that_it_does_again(plane: Plane) -> None:
    """Each start counts its attempts from 0, and may begin at a checkpoint before the last step."""
    job_id = await running(plane)
    await plane.report(job_id, *(sample(step, rank, attempt=1) for step in (1, 2) for rank in (0, 1)))
    await lose(plane, job_id)
    await plane.rounds(1)
    again = [sample(1, rank, attempt=0, loss=0.25) for rank in (0, 1)]
    assert (await plane.report(job_id, *again)).status_code == 204
    shown = (await plane.http.get(f"/v1/jobs/{job_id}/steps")).json()["items"]
    assert [(step["step"], step["attempt"], step["loss"]) for step in shown] == [
        (0, 0, 0.5), (0, 0, 0.5), (1, 2, 0.25), (1, 2, 0.25),
    ]  # fmt: skip
    assert (await plane.job(job_id))["attempts"] == 3


async def test_a_job_is_lost_when_its_retries_are_used_up(plane: Plane) -> None:
    job_id = await plane.started(retries={"max": 2})
    for _ in range(2):
        await lose(plane, job_id)
        assert await plane.state(job_id) is JobState.QUEUED
        await plane.rounds(1)
    await lose(plane, job_id)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == (
        "lost", "Ray knows nothing of this job any more, after retries.max=2 new starts",
    )  # fmt: skip
    assert plane.ray.calls == [f"submit {job_id}"] * 3


async def test_a_lost_job_that_was_to_stop_does_not_start_again(plane: Plane) -> None:
    job_id = await running(plane)
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    await lose(plane, job_id)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("lost", "Ray knows nothing of this job any more")


async def test_a_lost_job_is_stopped_in_the_queue(plane: Plane) -> None:
    job_id = await running(plane)
    await lose(plane, job_id)
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    await plane.rounds(2)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("stopped", "stopped before it started again")
    assert plane.ray.calls == [f"submit {job_id}"]


async def test_on_a_cluster_of_others_the_old_driver_is_given_time_to_end(plane: Plane) -> None:
    elsewhere = plane.settings.model_copy(update={"ray_address": "http://ray.test:8265"})
    plane.services.reconciler._settings = elsewhere
    job_id = await running(plane)
    await lose(plane, job_id)
    await plane.rounds(1)
    assert "starts again after 03:05:31 UTC, when its old processes have ended" in (await plane.job(job_id))["reason"]
    plane.clock.forward(75)
    await plane.rounds(1)
    assert plane.ray.calls == [f"submit {job_id}"] * 2


async def test_a_higher_priority_takes_the_place_of_a_lower_one(plane: Plane) -> None:
    low = await running(plane, **SAVES)
    high = await plane.submit(**URGENT)
    await plane.rounds(1)
    job = await plane.job(low)
    assert (job["state"], job["reason"]) == (
        "stopping", f"makes room for {high}, which has priority 5; saves first, and goes on from there later",
    )  # fmt: skip
    assert (await plane.job(high))["reason"] == f"needs 2 CPUs, 0 of 2 free; {low} makes room"
    assert plane.ray.calls == [f"submit {low}", f"stop {low}"]

    plane.ray.texts[low] = "the first start\n"
    assert (await plane.report(low, stop={"saved_at_step": 1})).status_code == 204
    plane.ray.says(low, RayStatus.STOPPED)
    await plane.rounds(1)
    job = await plane.job(low)
    assert (job["state"], job["reason"]) == ("queued", f"made room for {high}; saved at step 1")
    await plane.rounds(1)
    assert plane.ray.calls == [f"submit {low}", f"stop {low}", f"submit {high}"]
    plane.clock.forward(11)
    reason = f"made room for {high}; saved at step 1; needs 2 CPUs, 0 of 2 free"
    await plane.rounds(1)
    assert (await plane.job(low))["reason"] == reason
    del plane.ray.texts[low]
    assert (await plane.http.get(f"/v1/jobs/{low}/logs")).text == "the first start\n"

    plane.ray.says(high, RayStatus.SUCCEEDED)
    await plane.rounds(3)
    assert plane.ray.calls[3:] == [f"forget {low}", f"submit {low}"], "Ray takes no id that it knows"
    plane.ray.texts[low] = "the first start\nthe second start\n"
    assert (await plane.http.get(f"/v1/jobs/{low}/logs")).text == "the first start\nthe second start\n"
    plane.ray.says(low, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    job = await plane.job(low)
    assert (job["state"], job["reason"], job["attempts"]) == ("succeeded", None, 2)


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [(RayStatus.SUCCEEDED, "succeeded", None), (RayStatus.FAILED, "failed", "exit code 1")],
)
async def test_a_job_that_ended_before_it_could_make_room(
    plane: Plane, status: RayStatus, state: str, reason: str | None
) -> None:
    low = await running(plane, **SAVES)
    await plane.submit(**URGENT)
    await plane.rounds(1)
    plane.ray.says(low, status, "exit code 1")
    await plane.rounds(1)
    job = await plane.job(low)
    assert (job["state"], job["reason"]) == (state, reason)


@pytest.mark.parametrize("lost", [False, True], ids=["while it runs", "when Ray has lost it"])
async def test_a_stop_of_a_job_that_makes_room_is_for_good(plane: Plane, lost: bool) -> None:
    low = await running(plane, **SAVES)
    await plane.submit(**URGENT)
    await plane.rounds(1)
    plane.ray.texts[low] = "ended cleanly\n"
    if lost:
        del plane.ray.jobs[low]
    assert (await plane.http.post(f"/v1/jobs/{low}/stop")).json()["state"] == "stopping"
    if not lost:
        plane.ray.says(low, RayStatus.STOPPED)
    await plane.rounds(2)
    assert await plane.state(low) is JobState.STOPPED
    if not lost:
        assert (await plane.http.get(f"/v1/jobs/{low}/logs")).text == "ended cleanly\n"
    assert plane.ray.calls.count(f"submit {low}") == 1


async def test_nobody_makes_room_just_after_something_has_ended(plane: Plane) -> None:
    """Ray's figures still count it, so there may be room already."""
    ended = await plane.started(workers={"count": 1}, **SAVES)
    low = await running(plane, workers={"count": 1}, **SAVES)
    plane.ray.used = {"CPU": 2}
    plane.ray.says(ended, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    high = await plane.submit(workers={"count": 1}, **URGENT)
    await plane.rounds(1)
    assert await plane.state(low) is JobState.RUNNING
    plane.ray.used = {"CPU": 1}
    await plane.rounds(1)
    assert plane.ray.calls[-1] == f"submit {high}"


async def test_a_job_that_its_project_may_never_hold_is_refused(plane: Plane) -> None:
    plane.services.jobs._quotas = Quotas({"ads": Quota(cpus=1)})
    job = {"name": "tiny", "data": {"source": "synthetic"}, "workers": {"count": 2}, "queue": {"project": "ads"}}
    answer = await plane.http.post("/v1/jobs", json=job)
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("infeasible")
    assert answer.json()["errors"] == [{"field": "workers", "message": "needs 2 CPUs, project ads may hold 1 in all"}]
