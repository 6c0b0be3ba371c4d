"""Each state, step by step, against a Ray whose answers the test sets."""

import json

import pytest

from service.cluster.gateway import RayJob, RayStatus
from service.models import JobState
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import sample

pytestmark = pytest.mark.anyio


async def test_a_job_goes_from_queued_to_succeeded(plane: Plane) -> None:
    job_id = await plane.submit()
    assert await plane.state(job_id) is JobState.QUEUED

    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.STARTING
    assert plane.ray.calls == [f"submit {job_id}"]

    plane.ray.says(job_id, RayStatus.RUNNING)
    await plane.rounds(2)
    assert await plane.state(job_id) is JobState.STARTING, "a process alone is not a running job"

    await plane.report(job_id, sample(0, 0))
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.RUNNING

    plane.ray.texts[job_id] = "one\ntwo\n"
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.SUCCEEDED
    assert (await plane.http.get(f"/v1/jobs/{job_id}/logs")).text == "one\ntwo\n"


async def test_the_job_process_is_told_what_it_needs(plane: Plane) -> None:
    job_id = await plane.started()
    env = plane.ray.submissions[job_id].env
    assert json.loads(env["OVERLANE_JOB"])["name"] == "tiny"
    assert env["OVERLANE_JOB_ID"] == job_id
    assert env["OVERLANE_REPORT_URL"] == "http://127.0.0.1:8420"
    assert env["OVERLANE_STORAGE"] == str(plane.settings.home / "storage")
    assert env["RAY_JOB_STOP_SIGNAL"] == "SIGINT"
    assert plane.ray.submissions[job_id].entrypoint.endswith("-m workers.train --job env:OVERLANE_JOB")


@pytest.mark.parametrize(
    ("status", "expected", "reason"),
    [
        (RayStatus.SUCCEEDED, JobState.SUCCEEDED, None),
        (RayStatus.FAILED, JobState.FAILED, "exit code 3"),
        (RayStatus.STOPPED, JobState.STOPPED, "stopped through Ray"),
        (None, JobState.LOST, "Ray knows nothing of this job any more"),
    ],
)
async def test_what_ray_says_at_the_end(
    plane: Plane, status: RayStatus | None, expected: JobState, reason: str | None
) -> None:
    job_id = await plane.started(retries={"max": 0})
    if status is None:
        del plane.ray.jobs[job_id]
    else:
        plane.ray.says(job_id, status, "exit code 3")
    await plane.rounds(1)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == (expected, reason)
    assert job["ended_at"] == "2026-01-02T03:04:05.000Z"


async def test_a_reported_failure_is_the_reason(plane: Plane) -> None:
    job_id = await plane.started()
    await plane.report(job_id, failure={"message": "rank 1: out of memory", "traceback": "Traceback ..."})
    plane.ray.says(job_id, RayStatus.FAILED, "exit code 1")
    await plane.rounds(1)
    job = await plane.job(job_id)
    assert job["reason"] == "rank 1: out of memory"
    assert job["failure"]["traceback"] == "Traceback ..."


async def test_a_failure_that_arrives_while_ray_is_asked_is_the_reason(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await plane.started()
    ask = plane.ray.job

    async def slow(asked: str) -> RayJob | None:
        await plane.report(job_id, failure={"message": "rank 1: out of memory", "traceback": ""})
        plane.ray.says(job_id, RayStatus.FAILED, "exit code 1")
        return await ask(asked)

    monkeypatch.setattr(plane.ray, "job", slow)
    await plane.rounds(1)
    assert (await plane.job(job_id))["reason"] == "rank 1: out of memory"


async def test_stop_while_queued(plane: Plane) -> None:
    plane.ray.used = {"CPU": 2}
    job_id = await plane.submit()
    await plane.rounds(1)
    answer = await plane.http.post(f"/v1/jobs/{job_id}/stop")
    assert (answer.status_code, answer.json()["state"]) == (202, "stopping")
    plane.ray.away = True
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.STOPPED, "Ray is not needed to stop what never started"
    assert plane.ray.calls == []


async def test_stop_is_asked_again_until_ray_obeys(plane: Plane) -> None:
    """Ray ignores a stop of a job that is still pending."""
    job_id = await plane.started()
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    await plane.rounds(1)
    plane.ray.says(job_id, RayStatus.RUNNING)
    await plane.rounds(1)
    assert plane.ray.calls == [f"submit {job_id}", f"stop {job_id}", f"stop {job_id}"]
    assert await plane.state(job_id) is JobState.STOPPING
    plane.ray.says(job_id, RayStatus.STOPPED)
    await plane.rounds(1)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("stopped", None)


async def test_stop_while_running_keeps_stopping_although_steps_arrive(plane: Plane) -> None:
    job_id = await plane.with_steps(1)
    plane.ray.says(job_id, RayStatus.RUNNING)
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.RUNNING
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    await plane.report(job_id, sample(1, 0))
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.STOPPING


@pytest.mark.parametrize(
    ("status", "expected"), [(RayStatus.SUCCEEDED, JobState.SUCCEEDED), (RayStatus.FAILED, JobState.FAILED)]
)
async def test_a_job_that_ended_before_the_stop_arrived(plane: Plane, status: RayStatus, expected: JobState) -> None:
    job_id = await plane.started()
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    plane.ray.says(job_id, status)
    await plane.rounds(1)
    assert await plane.state(job_id) is expected


@pytest.mark.parametrize("status", [RayStatus.SUCCEEDED, RayStatus.FAILED, RayStatus.STOPPED, None])
async def test_stop_of_an_ended_job_changes_nothing(plane: Plane, status: RayStatus | None) -> None:
    job_id = await plane.started(retries={"max": 0})
    if status is None:
        del plane.ray.jobs[job_id]
    else:
        plane.ray.says(job_id, status)
    await plane.rounds(1)
    before = await plane.job(job_id)
    assert (await plane.http.post(f"/v1/jobs/{job_id}/stop")).status_code == 202
    await plane.rounds(1)
    assert await plane.job(job_id) == before


async def test_a_stop_that_was_recorded_survives_a_lost_submission_answer(plane: Plane) -> None:
    plane.ray.loses_answers = True
    job_id = await plane.started()
    assert "connection broke" in (await plane.job(job_id))["reason"]
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    await plane.rounds(2)
    assert plane.ray.calls == [f"submit {job_id}", f"stop {job_id}"]


async def test_a_lost_submission_answer_does_not_start_a_job_twice(plane: Plane) -> None:
    plane.ray.loses_answers = True
    job_id = await plane.started()
    plane.ray.loses_answers = False
    await plane.rounds(2)
    assert plane.ray.calls == [f"submit {job_id}"]
    assert (await plane.report(job_id, sample(0, 0))).status_code == 204, (
        "the token of that submission is the valid one"
    )


async def test_a_submission_that_arrives_late_keeps_a_valid_token(plane: Plane) -> None:
    """Ray is asked again while the first submission is still on its way, and then it is the first that counts."""
    plane.ray.arrives_late = True
    job_id = await plane.submit()
    await plane.rounds(1)
    assert "connection broke" in (await plane.job(job_id))["reason"]
    await plane.rounds(2)
    assert plane.ray.calls == [f"submit {job_id}", f"submit {job_id}"]
    assert (await plane.report(job_id, sample(0, 0))).status_code == 204


async def test_a_start_that_was_only_recorded_is_made_good(plane: Plane) -> None:
    """As after a crash between the record and the submission, or when Ray was away at that moment."""
    job_id = await plane.submit()
    [record] = await plane.services.reconciler._jobs.active()
    await plane.services.reconciler._start(record)
    assert plane.ray.calls == []
    await plane.rounds(1)
    assert plane.ray.calls == [f"submit {job_id}"]


async def test_ray_refuses_the_submission(plane: Plane) -> None:
    plane.ray.refusal = "ValueError: no such runtime_env"
    job_id = await plane.submit()
    await plane.rounds(1)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("failed", "Ray refused the job: ValueError: no such runtime_env")


async def test_ray_away_ends_no_job_and_says_so(plane: Plane) -> None:
    job_id = await plane.with_steps(1)
    plane.ray.says(job_id, RayStatus.RUNNING)
    await plane.rounds(1)
    plane.ray.away = True
    await plane.rounds(3)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("running", "ray.test does not answer")
    plane.ray.away = False
    await plane.rounds(1)
    assert (await plane.job(job_id))["reason"] is None


async def test_jobs_wait_for_their_whole_group_and_are_not_overtaken(plane: Plane) -> None:
    first = await plane.submit()
    large = await plane.submit()
    small = await plane.submit(workers={"count": 1})
    await plane.rounds(1)
    assert plane.ray.calls == [f"submit {first}"]
    assert (await plane.job(large))["reason"] == "needs 2 CPUs, 0 of 2 free"
    assert (await plane.job(small))["reason"] == f"needs 1 CPU, 0 of 2 free, behind {large}"

    plane.ray.says(first, RayStatus.SUCCEEDED)
    await plane.rounds(2)
    assert await plane.state(large) is JobState.STARTING
    assert await plane.state(small) is JobState.QUEUED


async def test_fractions_of_a_cpu_add_up(plane: Plane) -> None:
    plane.ray.cpus = 0.3
    ids = [await plane.submit(workers={"count": 1, "cpus": 0.1}) for _ in range(3)]
    await plane.rounds(1)
    assert plane.ray.calls == [f"submit {job_id}" for job_id in ids]


async def test_an_elastic_group_starts_when_its_smallest_fits(plane: Plane) -> None:
    plane.ray.used = {"CPU": 1}
    job_id = await plane.submit(workers={"count": {"min": 1, "max": 4}})
    larger = await plane.submit(workers={"count": {"min": 2, "max": 4}})
    await plane.rounds(1)
    assert plane.ray.calls == [f"submit {job_id}"]
    assert (await plane.job(larger))["reason"] == "needs 2 CPUs, 0 of 2 free"
    assert (await plane.job(job_id))["resources"] == {"workers": 1, "cpus": 1.0, "gpus": 0.0, "max_workers": 4}


async def test_a_higher_priority_goes_first(plane: Plane) -> None:
    plane.ray.used = {"CPU": 2}
    await plane.submit()
    urgent = await plane.submit(queue={"priority": 5})
    plane.ray.used = {}
    await plane.rounds(1)
    assert plane.ray.calls == [f"submit {urgent}"]


async def test_the_work_of_others_on_the_cluster_counts(plane: Plane) -> None:
    plane.ray.used = {"CPU": 1}
    job_id = await plane.submit()
    await plane.rounds(1)
    assert (await plane.job(job_id))["reason"] == "needs 2 CPUs, 1 of 2 free"


async def test_deadline_in_the_queue(plane: Plane) -> None:
    plane.ray.used = {"CPU": 2}
    job_id = await plane.submit(queue={"deadline_s": 60})
    plane.clock.forward(60)
    await plane.rounds(1)
    assert await plane.state(job_id) is JobState.QUEUED
    plane.clock.forward(0.1)
    await plane.rounds(1)
    job = await plane.job(job_id)
    assert (job["state"], job["reason"]) == ("failed", "did not start within deadline_s=60")


async def test_every_transition_leaves_an_event(plane: Plane) -> None:
    job_id = await plane.started()
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    async with plane.services.database.read() as connection:
        events = (await connection.exec_driver_sql("SELECT state FROM events ORDER BY number")).scalars().all()
    assert events == ["queued", "starting", "succeeded"]
