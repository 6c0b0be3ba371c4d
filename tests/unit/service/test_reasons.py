"""Nobody learns the ids of another project's jobs from the reasons of the own ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cluster.gateway import RayStatus
from service.jobs.reasons import named_to, readable
from service.security.roles import NO_TOKENS, Caller, Role
from service.settings import Settings
from tests.unit.service.callers import Callers
from tests.unit.service.conftest import JOB, Plane

CONFINED = Caller("looker", Role.VIEWER, "ranking")
# Of a higher priority, so that its jobs go first.
ADS, RANKING = {"queue": {"project": "ads", "priority": 5}}, {"queue": {"project": "ranking"}}
SAVES = {"checkpoint": {"every_steps": 10}}


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path / "tokens.yaml")


@pytest.fixture
def settings(settings: Settings, callers: Callers) -> Settings:
    return settings.model_copy(update={"tokens_file": callers.file})


async def submit(plane: Plane, callers: Callers, **changes: Any) -> str:
    answer = await plane.http.post("/v1/jobs", json=JOB | changes, headers=callers.headers("root"))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def running(plane: Plane, callers: Callers, **changes: Any) -> str:
    job_id = await submit(plane, callers, **changes)
    await plane.rounds(2)
    plane.ray.says(job_id, RayStatus.RUNNING)
    await plane.rounds(1)
    plane.clock.forward(11)
    return job_id


async def texts(plane: Plane, callers: Callers, who: str, job_id: str) -> list[str]:
    """Every answer to `who` that has the reason of the job in it."""
    headers = callers.headers(who)
    jobs = [job for job in (await plane.http.get("/v1/jobs", headers=headers)).json()["items"] if job["id"] == job_id]
    shown = (await plane.http.get(f"/v1/jobs/{job_id}", headers=headers)).json()
    assert jobs == [shown]
    return [str(shown["reason"])]


@pytest.mark.anyio
async def test_behind_a_job_of_another_project(plane: Plane, callers: Callers) -> None:
    await running(plane, callers, **ADS)
    head = await submit(plane, callers, **ADS)
    mine = await submit(plane, callers, **RANKING, workers={"count": 1})
    await plane.rounds(1)
    lack = "needs 1 CPU, 0 of 2 free"
    assert await texts(plane, callers, "looker", mine) == [f"{lack}, behind a job of another project"]
    assert await texts(plane, callers, "prometheus", mine) == [f"{lack}, behind {head} of another project"]
    stopped = await plane.http.post(f"/v1/jobs/{mine}/stop", headers=callers.headers("ci"))
    assert head not in stopped.text


@pytest.mark.anyio
async def test_behind_a_job_of_the_own_project(plane: Plane, callers: Callers) -> None:
    await running(plane, callers, **ADS)
    head = await submit(plane, callers, **RANKING)
    mine = await submit(plane, callers, **RANKING)
    await plane.rounds(1)
    assert await texts(plane, callers, "looker", mine) == [f"needs 2 CPUs, 0 of 2 free, behind {head}"]


@pytest.mark.anyio
async def test_room_that_is_made_between_projects(plane: Plane, callers: Callers) -> None:
    low = await running(plane, callers, **SAVES, **RANKING)
    high = await submit(plane, callers, **ADS)
    await plane.rounds(1)
    rest = "which has priority 5; saves first, and goes on from there later"
    assert await texts(plane, callers, "looker", low) == [f"makes room for a job of another project, {rest}"]
    assert await texts(plane, callers, "root", low) == [f"makes room for {high} of another project, {rest}"]
    told = await texts(plane, callers, "rival", high)
    assert told == ["needs 2 CPUs, 0 of 2 free; a job of another project makes room"]
    plane.ray.says(low, RayStatus.STOPPED)
    await plane.rounds(1)
    assert await texts(plane, callers, "looker", low) == ["made room for a job of another project"]
    plane.clock.forward(11)
    await plane.rounds(2)
    told = await texts(plane, callers, "looker", low)
    assert told == ["made room for a job of another project; needs 2 CPUs, 0 of 2 free"]

    await plane.http.post(f"/v1/jobs/{low}/stop", headers=callers.headers("root"))
    await plane.rounds(1)
    events = await plane.http.get(f"/v1/jobs/{low}/events", headers=callers.headers("looker"))
    assert "made room for a job of another project" in events.text
    assert high not in events.text
    events = await plane.http.get(f"/v1/jobs/{low}/events", headers=callers.headers("root"))
    assert f"made room for {high} of another project" in events.text


@pytest.mark.anyio
async def test_a_job_for_which_room_was_made_may_be_gone(plane: Plane, callers: Callers) -> None:
    low = await running(plane, callers, **SAVES, **RANKING)
    high = await submit(plane, callers, **ADS)
    await plane.rounds(1)
    await plane.http.post(f"/v1/jobs/{high}/stop", headers=callers.headers("root"))
    await plane.rounds(1)
    assert (await plane.http.delete(f"/v1/jobs/{high}", headers=callers.headers("root"))).status_code == 204
    plane.ray.says(low, RayStatus.STOPPED)
    await plane.rounds(2)
    [reason] = await texts(plane, callers, "looker", low)
    assert reason.startswith("made room for a job of another project")


@pytest.mark.anyio
async def test_a_plan_names_no_job_of_another_project(plane: Plane, callers: Callers) -> None:
    await running(plane, callers, **ADS)
    head = await submit(plane, callers, **ADS)
    plane.ray.refusal = "no dry runs"
    plan = await plane.http.post("/v1/plans", json=JOB | RANKING, headers=callers.headers("ci"))
    assert plan.json()["waits_for"] == "needs 2 CPUs, 0 of 2 free, behind a job of another project"
    assert head not in plan.text
    plan = await plane.http.post("/v1/plans", json=JOB | RANKING, headers=callers.headers("root"))
    assert f"behind {head} of another project" in plan.text


ids = st.from_regex(r"job-[0-9]{8}-[0-9]{6}-[a-z2-9]{6}", fullmatch=True)
ways: list[Callable[[str], str]] = [
    lambda names: f"needs 1 CPU, 0 of 2 free, behind {names}",
    lambda names: f"needs 1 CPU, 0 of 2 free; {names} make room",
    lambda names: f"made room for {names}; behind {names}",
]


@given(
    st.lists(st.tuples(ids, st.sampled_from(["ranking", "ads", None])), min_size=1, max_size=5), st.sampled_from(ways)
)
def test_own_ids_stay_and_foreign_ones_go(jobs: list[tuple[str, str | None]], way: Callable[[str], str]) -> None:
    text = way(", ".join(named_to(job_id, project, "ranking") for job_id, project in jobs))
    assert readable(text, NO_TOKENS) == text
    shown = readable(text, CONFINED)
    assert readable(shown, CONFINED) == shown
    for job_id, project in jobs:
        assert (job_id in shown) == any(each == (job_id, "ranking") for each in jobs), (job_id, project, shown)


def test_several_are_one_phrase() -> None:
    text = ", ".join(named_to(f"job-{number}", "ads", "ranking") for number in range(3))
    assert readable(f"; {text} make room", CONFINED) == "; jobs of other projects make room"
    assert readable(f"; {text}, job-7 make room", CONFINED) == "; jobs of other projects, job-7 make room"
