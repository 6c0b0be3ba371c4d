"""Jobs that Ray calls failed since their supervisor had ended, as it does at the end of any job, before Ray looked."""

import pytest

from service.cluster.gateway import RayStatus
from service.models import JobState
from tests.unit.service.conftest import Plane
from tests.unit.service.test_requeue import SAVES, URGENT, running

pytestmark = pytest.mark.anyio

UNSEEN = """Job supervisor actor died: The actor died unexpectedly before finishing this task.
The actor is dead because its worker process has died. Worker exit type: INTENDED_USER_EXIT Worker exit detail: ..."""
RESULT = {"steps": 1, "samples": 16, "seconds": 1.0, "loss": 0.5, "metrics": {}, "checkpoint": None}


async def test_a_job_that_makes_room_goes_back_to_the_queue(plane: Plane) -> None:
    low = await running(plane, **SAVES)
    high = await plane.submit(**URGENT)
    await plane.rounds(1)
    plane.ray.says(low, RayStatus.FAILED, UNSEEN)
    await plane.rounds(1)
    job = await plane.job(low)
    assert (job["state"], job["reason"]) == ("queued", f"made room for {high}; it did not say whether it saved")


async def test_a_job_that_was_told_to_stop_is_stopped(plane: Plane) -> None:
    job_id = await running(plane)
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    plane.ray.says(job_id, RayStatus.FAILED, UNSEEN)
    await plane.rounds(1)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("stopped", "it did not say whether it saved")


async def test_a_job_that_has_told_its_result_has_succeeded(plane: Plane) -> None:
    job_id = await running(plane)
    assert (await plane.report(job_id, result=RESULT)).status_code == 204
    plane.ray.says(job_id, RayStatus.FAILED, UNSEEN)
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.SUCCEEDED


@pytest.mark.parametrize("tells", [True, False])
async def test_any_other_has_failed(plane: Plane, tells: bool) -> None:
    job_id = await running(plane)
    if tells:
        await plane.report(job_id, failure={"message": "rank 1: out of memory", "traceback": ""})
    plane.ray.says(job_id, RayStatus.FAILED, UNSEEN)
    await plane.rounds(1)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("failed", "rank 1: out of memory" if tells else UNSEEN)


async def test_a_supervisor_that_was_killed_is_a_failure(plane: Plane) -> None:
    job_id = await running(plane)
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    plane.ray.says(job_id, RayStatus.FAILED, UNSEEN.replace("INTENDED_USER_EXIT", "SYSTEM_ERROR"))
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.FAILED
