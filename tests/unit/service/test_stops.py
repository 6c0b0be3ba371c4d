"""Jobs that are told to stop save first: what is told of that, how long they have, and who sees to it that they end."""

from typing import Any

import pytest

from service.cluster.gateway import RayStatus
from service.models import JobState
from service.services import Services
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import sample
from tests.unit.service.test_requeue import SAVES, URGENT, running

pytestmark = pytest.mark.anyio

SAVED = {"saved_at_step": 12}
LATE = {"problem": "there was no checkpoint within checkpoint.stop_grace_s=60"}

TOLD = pytest.mark.parametrize(
    ("stop", "words"),
    [
        (SAVED, "saved at step 12"),
        (LATE, f"not saved: {LATE['problem']}"),
        (None, "it did not say whether it saved"),
    ],
    ids=["saved", "late", "silent"],
)


async def reasons(plane: Plane, job_id: str) -> list[tuple[str, str | None]]:
    """What the job's events say, the last three of them."""
    told = await plane.services.feeds._events.after(job_id, 0)
    return [(event.state.value, event.reason) for event in told][-3:]


async def told(plane: Plane, job_id: str, stop: dict[str, Any] | None) -> None:
    """The job has ended on Ray, and has told this before, or nothing."""
    if stop is not None:
        assert (await plane.report(job_id, stop=stop)).status_code == 204
    plane.ray.says(job_id, RayStatus.STOPPED)


@TOLD
async def test_a_stopped_job_says_whether_it_saved(plane: Plane, stop: dict[str, Any] | None, words: str) -> None:
    job_id = await running(plane)
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    await plane.rounds(1)
    await told(plane, job_id, stop)
    await plane.rounds(1)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("stopped", words)
    assert (await reasons(plane, job_id))[-1] == ("stopped", words)


@TOLD
async def test_a_preempted_job_says_whether_it_saved(plane: Plane, stop: dict[str, Any] | None, words: str) -> None:
    low = await running(plane, **SAVES)
    high = await plane.submit(**URGENT)
    await plane.rounds(1)
    await told(plane, low, stop)
    await plane.rounds(2)
    assert await reasons(plane, low) == [
        ("running", None),
        ("stopping", f"makes room for {high}, which has priority 5; saves first, and goes on from there later"),
        ("queued", f"made room for {high}; {words}"),
    ]


async def test_a_job_without_steps_had_nothing_to_save(plane: Plane) -> None:
    job_id = await plane.started()
    plane.ray.says(job_id, RayStatus.RUNNING)
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    await plane.rounds(1)
    await told(plane, job_id, {})
    await plane.rounds(1)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("stopped", None)


async def test_a_job_that_somebody_stops_through_ray_says_it_too(plane: Plane) -> None:
    job_id = await running(plane)
    await told(plane, job_id, SAVED)
    await plane.rounds(1)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("stopped", "stopped through Ray; saved at step 12")


@pytest.mark.parametrize(("grace_s", "wait_s"), [(None, "90"), (0.5, "31"), (0, "30")])
async def test_ray_gives_a_job_time_to_save(plane: Plane, grace_s: float | None, wait_s: str) -> None:
    """Whatever the cluster's own settings are, and also while the service is away."""
    checkpoint = {} if grace_s is None else {"stop_grace_s": grace_s}
    job_id = await plane.started(checkpoint=checkpoint)
    assert plane.ray.submissions[job_id].env["RAY_JOB_STOP_WAIT_TIME_S"] == wait_s


async def test_what_one_start_has_saved_is_not_said_of_the_next(plane: Plane) -> None:
    low = await running(plane, **SAVES)
    high = await plane.submit(**URGENT)
    await plane.rounds(1)
    await told(plane, low, SAVED)
    await plane.rounds(2)
    plane.clock.forward(11)
    plane.ray.says(high, RayStatus.SUCCEEDED)
    await plane.rounds(3)
    plane.ray.says(low, RayStatus.RUNNING)
    assert (await plane.report(low, sample(12, 0), sample(12, 1))).status_code == 204
    await plane.http.post(f"/v1/jobs/{low}/stop")
    await plane.rounds(1)
    plane.ray.says(low, RayStatus.STOPPED)
    await plane.rounds(1)
    assert (await plane.job(low))["reason"] == "it did not say whether it saved"


class KilledError(Exception):
    """Where the service is, it is killed."""


@pytest.mark.parametrize("preempted", [True, False], ids=["preempted", "stopped"])
async def test_a_service_that_is_killed_at_each_step_asks_again_and_tells_the_same(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, preempted: bool
) -> None:
    """The wish is recorded before Ray is asked, nothing else has to be known, and no clock of the service's runs."""

    async def killed(before: str) -> None:
        async def dies(_: str) -> None:
            raise KilledError

        with monkeypatch.context() as patch:
            patch.setattr(plane.ray, before, dies)
            with pytest.raises(KilledError):
                await plane.rounds(1)
        plane.services = Services.build(plane.settings, plane.services.database, plane.ray, plane.clock)

    low = await running(plane, **SAVES)
    high = await plane.submit(**URGENT) if preempted else None
    if high is None:
        await plane.http.post(f"/v1/jobs/{low}/stop")
    await killed(before="stop")
    assert plane.ray.calls == [f"submit {low}"]
    assert await plane.state(low) is JobState.STOPPING
    # The job saves, for longer than it may: that is between Ray and the job.
    for _ in range(2):
        await plane.rounds(1)
        plane.clock.forward(3600)
        await killed(before="job")
    assert plane.ray.calls == [f"submit {low}"] + [f"stop {low}"] * 2
    await told(plane, low, SAVED)
    if high is None:
        await plane.rounds(1)
        assert (await reasons(plane, low))[-1] == ("stopped", "saved at step 12")
        return
    await plane.rounds(1)
    assert (await reasons(plane, low))[-1] == ("queued", f"made room for {high}; saved at step 12")
    await killed(before="submit")
    await plane.rounds(1)
    plane.ray.says(high, RayStatus.SUCCEEDED)
    plane.clock.forward(11)
    await plane.rounds(1)
    await killed(before="forget")
    await plane.rounds(1)
    await killed(before="submit")
    await plane.rounds(1)
    assert plane.ray.calls[3:] == [f"submit {high}", f"forget {low}", f"submit {low}"]


async def test_what_ray_writes_down_about_an_earlier_start_is_not_the_end_of_the_next(plane: Plane) -> None:
    """Ray may find a job's process dead when the job is forgotten, and then calls it failed under the same id."""
    low = await running(plane, **SAVES)
    high = await plane.submit(**URGENT)
    await plane.rounds(1)
    await told(plane, low, SAVED)
    await plane.rounds(2)
    plane.ray.says(low, RayStatus.FAILED, "Job supervisor actor died")
    plane.ray.says(high, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    assert await plane.state(low) is JobState.QUEUED, "Ray may still be looking"
    plane.clock.forward(11)
    await plane.rounds(2)
    assert plane.ray.calls[3:] == [f"forget {low}", f"submit {low}"]
    await plane.rounds(1)
    assert await plane.state(low) is JobState.STARTING


async def test_what_ray_still_runs_of_an_earlier_start_is_stopped_first(plane: Plane) -> None:
    """A head that has lost its memory may find it again."""
    job_id = await running(plane)
    seen = plane.ray.jobs.pop(job_id)
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.QUEUED
    plane.ray.jobs[job_id] = seen
    await plane.rounds(1)
    assert plane.ray.calls[1:] == [f"stop {job_id}"]
    plane.ray.says(job_id, RayStatus.STOPPED)
    await plane.rounds(2)
    assert plane.ray.calls[2:] == [f"forget {job_id}", f"submit {job_id}"]
