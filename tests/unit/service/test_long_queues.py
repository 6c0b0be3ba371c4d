"""Of a long queue only the front is looked at in each round, and nobody is forgotten for that."""

import itertools

import pytest

from service.cluster.gateway import RayStatus
from service.models import JobState
from tests.unit.service.conftest import Plane

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _short_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.jobs.reconciler._LOOK_AT_FIRST", 3)


async def reasons(plane: Plane, *job_ids: str) -> list[str]:
    return [(await plane.job(job_id))["reason"] or "" for job_id in job_ids]


async def test_jobs_behind_the_front_are_told_so_and_come_to_the_front_in_their_order(plane: Plane) -> None:
    waiting = [await plane.submit() for _ in range(6)]
    await plane.rounds(2)
    lack = "needs 2 CPUs, 0 of 2 free"
    told = await reasons(plane, *waiting[1:])
    assert told[:3] == [lack, f"{lack}, behind {waiting[1]}", f"{lack}, behind {waiting[1]}"]
    assert told[3:] == ["behind the first 100 jobs of its project"] * 2
    for first, following in itertools.pairwise(waiting):
        assert await plane.state(first) is not JobState.QUEUED
        assert await plane.state(following) is JobState.QUEUED
        plane.ray.says(first, RayStatus.SUCCEEDED)
        await plane.rounds(2)


async def test_each_project_has_a_front_of_its_own(plane: Plane) -> None:
    for _ in range(4):
        await plane.submit(queue={"project": "ads"})
    other = await plane.submit(queue={"project": "ranking"})
    await plane.rounds(1)
    assert "behind the first" not in (await reasons(plane, other))[0]


async def test_jobs_that_the_cluster_could_never_hold_do_not_hide_those_behind_them(plane: Plane) -> None:
    plane.ray.cpus = 100
    large = [await plane.submit(workers={"count": 50}) for _ in range(7)]
    small = await plane.submit()
    plane.ray.cpus = 2
    await plane.rounds(3)
    assert await plane.state(small) is JobState.STARTING
    assert all("behind the first" not in reason for reason in await reasons(plane, *large))


async def test_a_deadline_counts_behind_the_front(plane: Plane) -> None:
    for _ in range(4):
        await plane.submit()
    late = await plane.submit(queue={"deadline_s": 5})
    patient = await plane.submit(queue={"deadline_s": 5000})
    await plane.rounds(1)
    plane.clock.forward(6)
    await plane.rounds(1)
    assert await plane.state(late) is JobState.FAILED
    assert await reasons(plane, late) == ["did not start within deadline_s=5"]
    assert await plane.state(patient) is JobState.QUEUED
