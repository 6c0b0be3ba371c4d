"""Reports in, figures out."""

import json
from typing import Any

import httpx
import pytest

from service.cluster.gateway import RayStatus
from service.problems import ProblemType
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import collective, sample
from tests.unit.service.test_api import problem

pytestmark = pytest.mark.anyio


async def page(plane: Plane, job_id: str, **query: Any) -> tuple[list[tuple[int, int]], int | None]:
    """(step, rank) of the samples of a page, and where it says to go on."""
    answer = (await plane.http.get(f"/v1/jobs/{job_id}/steps", params=query)).json()
    return [(item["step"], item["rank"]) for item in answer["items"]], answer["next_after"]


async def post(plane: Plane, job_id: str, body: str, token: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return await plane.http.post(f"/internal/v1/jobs/{job_id}/reports", content=body, headers=headers)


async def test_a_sample_comes_back_as_it_was_sent(plane: Plane) -> None:
    job_id = await plane.started()
    sent = sample(0, 0, loss=None, clock_offset_ms=-1.5, clock_uncertainty_ms=0.25)
    await plane.report(job_id, sent, sample(0, 1))
    [got, other] = (await plane.http.get(f"/v1/jobs/{job_id}/steps")).json()["items"]
    assert got == sent | {"time": "2026-01-02T03:04:05.000Z"}
    assert (other["clock_offset_ms"], other["clock_uncertainty_ms"]) == (None, None)


async def test_delivering_twice_changes_nothing(plane: Plane) -> None:
    job_id = await plane.started()
    batch = [sample(step, rank) for step in range(3) for rank in range(2)]
    made = plan(2, 0) | {"prioritized": {"ebc": "row_wise"}, "sharding": []}
    await plane.report(job_id, *batch, dropped=4, plan=made)
    once = (await plane.job(job_id), (await plane.http.get(f"/v1/jobs/{job_id}/overlap")).json())
    await plane.report(job_id, *batch, dropped=4, plan=made)
    await plane.report(job_id, *batch[:2], dropped=1)
    assert (await plane.job(job_id), (await plane.http.get(f"/v1/jobs/{job_id}/overlap")).json()) == once
    assert once[0]["dropped_samples"] == 4
    assert once[0]["plan"] == made


async def test_a_late_sample_of_an_older_attempt_replaces_nothing(plane: Plane) -> None:
    job_id = await plane.started()
    await plane.report(job_id, sample(5, 0, attempt=1, loss=0.1))
    await plane.report(job_id, sample(5, 0, attempt=0, loss=0.9))
    [got] = (await plane.http.get(f"/v1/jobs/{job_id}/steps?rank=0")).json()["items"]
    assert (got["attempt"], got["loss"]) == (1, 0.1)
    assert (await plane.job(job_id))["attempts"] == 2


async def test_result(plane: Plane) -> None:
    job_id = await plane.started()
    result = {"steps": 3, "samples": 9, "seconds": 1.5, "loss": None, "metrics": {"auc": 0.7}}
    result |= {"checkpoint": None, "bad_rows": 3}
    await plane.report(job_id, result=result)
    assert (await plane.job(job_id))["result"] == result


async def test_who_may_report(plane: Plane) -> None:
    job_id, other = await plane.started(workers={"count": 1}), await plane.submit()
    problem(await post(plane, "job-nope", "{}", plane.ray.token(job_id)), ProblemType.UNAUTHORIZED)
    problem(await post(plane, job_id, "{}", "guess"), ProblemType.UNAUTHORIZED)
    problem(await post(plane, other, "{}", plane.ray.token(job_id)), ProblemType.UNAUTHORIZED)
    assert (await post(plane, job_id, "{}", plane.ray.token(job_id))).status_code == 204


async def test_the_database_keeps_no_token(plane: Plane) -> None:
    job_id = await plane.started()
    await plane.services.database.ping()
    token = plane.ray.token(job_id).encode()
    for file in plane.settings.home.glob("overlane.db*"):
        assert token not in file.read_bytes()


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        '{"samples": [{}]}',
        '{"dropped": -1}',
        '{"dropped": 1e999}',
        json.dumps({"samples": [sample(0, 0, step_ms=float("nan"))]}),
        json.dumps({"samples": [sample(0, 0, loss=float("inf"))]}),
        json.dumps({"samples": [sample(0, 0)]}).replace('"loss": 0.5', '"loss": 1e400'),
        "[" * 100_000,
    ],
)
async def test_reports_that_are_not_strict(plane: Plane, body: str) -> None:
    job_id = await plane.started()
    problem(await post(plane, job_id, body, plane.ray.token(job_id)), ProblemType.INVALID_REQUEST)
    assert await page(plane, job_id) == ([], None)


async def test_a_page_never_splits_a_step(plane: Plane) -> None:
    job_id = await plane.with_steps(4, ranks=2)
    assert await page(plane, job_id, limit=5) == ([(0, 0), (0, 1), (1, 0), (1, 1)], 1)
    assert await page(plane, job_id, limit=5, after=1) == ([(2, 0), (2, 1), (3, 0), (3, 1)], 3)
    assert await page(plane, job_id, limit=1) == ([(0, 0), (0, 1)], 0)
    assert await page(plane, job_id, limit=4) == ([(0, 0), (0, 1), (1, 0), (1, 1)], 1)
    assert await page(plane, job_id, after=3) == ([], None)


async def test_a_step_that_is_still_coming_in_is_held_back(plane: Plane) -> None:
    job_id = await plane.started()
    await plane.report(job_id, sample(0, 0), sample(1, 0))
    assert await page(plane, job_id) == ([], None)
    await plane.report(job_id, sample(0, 1))
    assert await page(plane, job_id) == ([(0, 0), (0, 1)], 0)
    assert await page(plane, job_id, rank=0) == ([(0, 0), (1, 0)], 1)
    await plane.report(job_id, sample(2, 0), sample(2, 1))
    assert await page(plane, job_id, after=0) == ([(1, 0), (2, 0), (2, 1)], 2), "what is missing of step 1 was dropped"


async def test_an_ended_job_shows_all_it_has(plane: Plane) -> None:
    job_id = await plane.started()
    await plane.report(job_id, sample(0, 1))
    plane.ray.says(job_id, RayStatus.FAILED)
    await plane.rounds(1)
    assert await page(plane, job_id) == ([(0, 1)], 0)


async def test_latest_is_the_newest_step_that_every_rank_reported(plane: Plane) -> None:
    job_id = await plane.started()
    assert (await plane.job(job_id))["latest"] is None
    await plane.report(
        job_id,
        sample(0, 0),
        sample(0, 1),
        sample(1, 0, step_ms=30.0, comm_ms=10.0, exposed_ms=5.0, loss=0.2),
        sample(1, 1, step_ms=10.0, comm_ms=30.0, exposed_ms=5.0, loss=None, ids=3000),
        sample(2, 0),
        plan={"steps": 40, "world_size": 2, "prioritized": {}, "not_prioritized": {}},
    )
    assert (await plane.job(job_id))["latest"] == {
        "step": 1,
        "steps": 40,
        "rank_count": 2,
        "samples_per_s": pytest.approx(1024 / 0.020),
        "step_ms": 20.0,
        "compute_ms": 15.0,
        "comm_ms": 20.0,
        "exposed_ms": 5.0,
        "comm_overlap": 0.75,
        "id_overlap": 0.125,
        "loss": 0.2,
    }


async def test_overlap_by_hand(plane: Plane) -> None:
    """Rank 0: 4 of 10 ms exposed; rank 1: 1 of 10 ms; the OL gradient 5 of 8, the mask 0 of 2."""
    job_id = await plane.started()
    await plane.report(
        job_id,
        sample(
            0,
            0,
            step_ms=10.0,
            comm_ms=10.0,
            exposed_ms=4.0,
            hidden_ms=6.0,
            ids=100,
            overlapped_ids=10,
            collectives=[collective("gradient", "ol", 6.0, 4.0), collective("overlap_mask", None, 2.0, 0.0, 7)],
        ),
        sample(
            0,
            1,
            step_ms=30.0,
            comm_ms=10.0,
            exposed_ms=1.0,
            hidden_ms=9.0,
            ids=300,
            overlapped_ids=None,
            id_overlap=None,
            collectives=[collective("gradient", "ol", 2.0, 1.0)],
        ),
    )
    overlap = (await plane.http.get(f"/v1/jobs/{job_id}/overlap")).json()
    assert (overlap["steps"], overlap["warmup_steps"]) == (1, 0)
    assert overlap["step_ms"] == {"mean": 20.0, "p50": 20.0, "p95": 29.0, "p99": 29.8}
    assert overlap["exposed_ms"]["mean"] == 2.5
    assert overlap["hidden_ms"]["mean"] == 7.5
    assert overlap["comm_overlap"] == 0.75
    assert overlap["id_overlap"] == 0.1
    mask, gradient = overlap["collectives"]
    assert (gradient["name"], gradient["partition"]) == ("gradient", "ol")
    assert gradient["ms"]["mean"] == 4.0
    assert gradient["exposed_ms"]["mean"] == 2.5
    assert gradient["comm_overlap"] == 0.375
    assert (gradient["bytes_sent"], gradient["bytes_received"]) == (200, 400)
    assert (mask["name"], mask["partition"], mask["comm_overlap"], mask["bytes_sent"]) == ("overlap_mask", None, 1.0, 7)
    first, second = overlap["ranks"]
    assert (first["rank"], first["comm_overlap"], first["step_ms"]["mean"]) == (0, 0.6, 10.0)
    assert (second["rank"], second["comm_overlap"]) == (1, 0.9)
    assert [part["name"] for part in first["collectives"]] == ["overlap_mask", "gradient"]
    assert second["collectives"][0]["comm_overlap"] == 0.5
    assert len(second["collectives"]) == 1


async def test_overlap_without_communication_or_steps(plane: Plane) -> None:
    job_id = await plane.started()
    nothing = (await plane.http.get(f"/v1/jobs/{job_id}/overlap")).json()
    assert (nothing["steps"], nothing["step_ms"], nothing["collectives"], nothing["ranks"]) == (0, None, [], [])
    quiet = sample(0, 0, comm_ms=0, exposed_ms=0, hidden_ms=0, comm_overlap=None, ids=0, collectives=[])
    await plane.report(job_id, quiet)
    overlap = (await plane.http.get(f"/v1/jobs/{job_id}/overlap")).json()
    assert (overlap["comm_overlap"], overlap["id_overlap"], overlap["comm_ms"]["mean"]) == (None, None, 0.0)


@pytest.mark.parametrize(("steps", "warmup"), [(10, 0), (11, 3)])
async def test_the_first_steps_are_warm_up(plane: Plane, steps: int, warmup: int) -> None:
    job_id = await plane.with_steps(steps)
    overlap = (await plane.http.get(f"/v1/jobs/{job_id}/overlap")).json()
    assert (overlap["steps"], overlap["warmup_steps"]) == (steps - warmup, warmup)


async def test_every_attempt_warms_up(plane: Plane) -> None:
    """Attempt 0 ran steps 0 to 7, attempt 1 went on at step 6; left out are 0 to 2 and 6 to 8."""
    job_id = await plane.started()
    await plane.report(job_id, *[sample(step, rank) for step in range(8) for rank in range(2)])
    await plane.report(job_id, *[sample(step, rank, attempt=1) for step in range(6, 12) for rank in range(2)])
    overlap = (await plane.http.get(f"/v1/jobs/{job_id}/overlap")).json()
    assert (overlap["steps"], overlap["warmup_steps"]) == (6, 6)


async def test_metrics(plane: Plane) -> None:
    job_id = await plane.with_steps(2)
    lines = (await plane.http.get("/metrics")).text.splitlines()
    assert 'overlane_jobs{state="starting"} 1.0' in lines
    assert f'overlane_step_ms{{job_id="{job_id}",rank="1"}} 20.0' in lines
    assert f'overlane_exposed_ms{{job_id="{job_id}",rank="0"}} 2.0' in lines
    assert f'overlane_comm_overlap{{job_id="{job_id}",rank="0"}} 0.75' in lines
    labels = f'collective="embedding",job_id="{job_id}",partition="nol",rank="0"'
    [hidden] = [
        line for line in lines if line.startswith("overlane_collective_comm_overlap{") and '"nol",rank="0"' in line
    ]
    assert sorted(hidden.partition("{")[2].partition("}")[0].split(",")) == sorted(labels.split(","))
    assert hidden.endswith(" 1.0")
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    assert job_id not in (await plane.http.get("/metrics")).text, "series of ended jobs go away"


def plan(world_size: int, attempt: int) -> dict[str, Any]:
    return {"steps": 40, "world_size": world_size, "prioritized": {}, "not_prioritized": {}, "attempt": attempt}


ELASTIC = {"count": {"min": 1, "max": 4}}


async def test_a_step_is_complete_when_all_ranks_of_its_attempt_reported_it(plane: Plane) -> None:
    """Two ranks did steps 0 to 3, one went on from step 2, then three from step 3."""
    job_id = await plane.started(workers=ELASTIC)
    await plane.report(job_id, *[sample(step, rank) for step in range(4) for rank in range(2)], plan=plan(2, 0))
    assert (await plane.job(job_id))["latest"]["step"] == 3
    await plane.report(job_id, sample(2, 0, attempt=1), plan=plan(1, 1))
    shown = await plane.job(job_id)
    assert (shown["latest"]["step"], shown["latest"]["rank_count"], shown["plan"]["world_size"]) == (2, 1, 1)
    await plane.report(job_id, sample(3, 0, attempt=1), sample(4, 0, attempt=1))
    await plane.report(job_id, *[sample(3, rank, attempt=2) for rank in range(2)], plan=plan(3, 2))
    shown = await plane.job(job_id)
    assert (shown["latest"]["step"], shown["plan"]["world_size"]) == (2, 3), "of step 3 a rank's part is missing"
    assert await page(plane, job_id) == ([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)], 2)
    await plane.report(job_id, sample(3, 2, attempt=2))
    assert (await plane.job(job_id))["latest"]["rank_count"] == 3
    assert await page(plane, job_id, after=1) == ([(2, 0), (3, 0), (3, 1), (3, 2)], 3)


async def test_no_step_is_complete_before_it_is_known_how_many_ranks_there_are(plane: Plane) -> None:
    job_id = await plane.started(workers=ELASTIC)
    await plane.report(job_id, sample(0, 0), sample(0, 1))
    assert (await plane.job(job_id))["latest"] is None
    await plane.report(job_id, plan=plan(2, 0))
    assert (await plane.job(job_id))["latest"]["rank_count"] == 2


async def test_the_plan_of_a_later_attempt_replaces_the_earlier_one_and_no_other_way(plane: Plane) -> None:
    job_id = await plane.started(workers=ELASTIC)
    for told in (plan(2, 0), plan(3, 1), plan(2, 0)):
        await plane.report(job_id, plan=told)
    assert (await plane.job(job_id))["plan"]["attempt"] == 1


async def test_a_redelivered_batch_of_several_attempts_changes_nothing(plane: Plane) -> None:
    job_id = await plane.started(workers=ELASTIC)
    batch = [sample(step, rank) for step in range(3) for rank in range(2)] + [sample(1, 0, attempt=1)]
    await plane.report(job_id, *batch, plan=plan(1, 1))
    once = await page(plane, job_id, after=-1)
    await plane.report(job_id, *batch, plan=plan(1, 1))
    assert await page(plane, job_id, after=-1) == once
