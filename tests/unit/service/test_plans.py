"""Plans: what the control plane finds out by itself, and what it takes from a dry run on Ray."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service import cli
from service.cluster.gateway import RayStatus, RaySubmission
from service.models import Plan
from service.plans import DRY_RUN_PREFIX, PlanService
from service.problems import ProblemType
from service.security.roles import NO_TOKENS
from service.terminal import plan_tables
from tests.unit.service.conftest import JOB, Plane
from tests.unit.service.test_api import problem
from workers.job import parse_job
from workers.plans import Check, CheckName, Finding, Outcome, PlannedTraining
from workers.reports import ShardedTable

pytestmark = pytest.mark.anyio

OK, NO, NOT_CHECKED = Outcome.OK, Outcome.NO, Outcome.NOT_CHECKED
TRAINING = PlannedTraining(
    steps=10,
    world_size=2,
    sharding=(ShardedTable(name="user", module="tables", rows=8, dim=4, sharding="row_wise", ranks=(0, 1)),),
)


def line(name: CheckName, outcome: Outcome = OK, plan: PlannedTraining | None = None) -> str:
    return Finding(check=Check(name=name, outcome=outcome, detail=f"{name} is {outcome}"), plan=plan).line()


GOOD = line(CheckName.DATA) + line(CheckName.MODEL) + line(CheckName.TABLES, plan=TRAINING)


@pytest.fixture
def dry_run(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what the next dry runs write and how they end, after `polls` looks at them. None: they never end."""

    def set_up(text: str = GOOD, status: RayStatus | None = RayStatus.SUCCEEDED, message: str | None = None) -> None:
        submit = plane.ray.submit

        async def and_end(submission: RaySubmission) -> None:
            await submit(submission)
            plane.ray.texts[submission.id] = text
            if status is not None:
                plane.ray.says(submission.id, status, message)

        monkeypatch.setattr(plane.ray, "submit", and_end)

    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(plane.services.plans, "_pause", at_once)
    return set_up


async def planned(plane: Plane, **changes: Any) -> Plan:
    answer = await plane.http.post("/v1/plans", json=JOB | changes)
    assert answer.status_code == 200, answer.text
    return Plan.model_validate(answer.json())


def outcomes(plan: Plan) -> dict[CheckName, Outcome]:
    assert [check.name for check in plan.checks] == list(CheckName)
    return {check.name: check.outcome for check in plan.checks}


def detail(plan: Plan, name: CheckName) -> str:
    return next(check.detail for check in plan.checks if check.name is name)


async def test_a_job_that_can_run(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run()
    plan = await planned(plane)
    assert set(outcomes(plan).values()) == {OK}
    assert plan.outcome is OK
    assert plan.training == TRAINING
    assert plan.waits_for is None
    assert detail(plan, CheckName.CLUSTER) == "it would start now"
    assert plan.resources is not None
    assert plan.resources.cpus == 2


async def test_a_plan_records_nothing_and_leaves_nothing_on_ray(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run()
    await planned(plane)
    assert (await plane.http.get("/v1/jobs")).json()["items"] == []
    assert plane.ray.jobs == {}


async def test_the_dry_run_gets_the_job_and_no_secrets(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run()
    await planned(plane)
    [(run_id, submission)] = plane.ray.submissions.items()
    assert run_id.startswith(DRY_RUN_PREFIX)
    assert submission.entrypoint.endswith("-m workers.train --job env:OVERLANE_JOB --plan")
    assert set(submission.env) == {"OVERLANE_JOB"}
    assert parse_job(JOB).model_dump_json() == submission.env["OVERLANE_JOB"]


async def test_a_job_file_that_is_not_valid_is_refused_as_when_it_is_submitted(plane: Plane) -> None:
    bad = JOB | {"training": {"batchsize": 3}}
    refused, submitted = [await plane.http.post(path, json=bad) for path in ("/v1/plans", "/v1/jobs")]
    assert problem(refused, ProblemType.INVALID_JOB)["errors"] == submitted.json()["errors"]
    assert plane.ray.submissions == {}


async def test_a_no_of_the_dry_run(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run(line(CheckName.DATA) + line(CheckName.MODEL, NO), RayStatus.FAILED, "exit code 1")
    plan = await planned(plane)
    assert outcomes(plan) == dict.fromkeys(CheckName, OK) | {CheckName.MODEL: NO, CheckName.TABLES: NOT_CHECKED}
    assert detail(plan, CheckName.MODEL) == "model is no"
    assert detail(plan, CheckName.TABLES) == "it builds on the check of model"
    assert (plan.outcome, plan.training) == (NO, None)


async def test_a_dry_run_that_breaks_off(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run(line(CheckName.DATA), RayStatus.FAILED, "failed with exit code 142\nand a log")
    plan = await planned(plane)
    assert plan.outcome is NOT_CHECKED
    assert outcomes(plan)[CheckName.DATA] is OK
    for name in (CheckName.MODEL, CheckName.TABLES):
        assert detail(plan, name).endswith("broke off, or took longer than 120 s: failed with exit code 142")


async def test_a_dry_run_that_never_ends_is_stopped(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run(line(CheckName.DATA), status=None)
    plan = await planned(plane)
    assert outcomes(plan)[CheckName.MODEL] is NOT_CHECKED
    assert detail(plan, CheckName.MODEL) == "the dry run was not done within 120 s"
    [run_id] = plane.ray.submissions
    assert f"stop {run_id}" in plane.ray.calls


async def test_without_ray_the_rest_is_not_checked(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run()
    plane.ray.away = True
    plan = await planned(plane)
    assert outcomes(plan) == dict.fromkeys(CheckName, NOT_CHECKED) | {CheckName.SCHEMA: OK}
    assert "ray.test does not answer" in detail(plan, CheckName.DATA)


async def test_ray_may_refuse_the_dry_run(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run()
    plane.ray.refusal = "no such runtime environment"
    plan = await planned(plane)
    assert outcomes(plan)[CheckName.CLUSTER] is OK
    assert "no such runtime environment" in detail(plan, CheckName.DATA)


async def test_what_the_cluster_can_never_hold(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run()
    plan = await planned(plane, workers={"count": 8})
    assert outcomes(plan)[CheckName.CLUSTER] is NO
    needs = "needs 8 CPUs for 8 workers, the cluster has 2; ask for fewer or smaller workers"
    assert detail(plan, CheckName.CLUSTER) == needs
    assert plan.training == TRAINING


async def test_what_the_job_would_wait_for(plane: Plane, dry_run: Callable[..., None]) -> None:
    """The plan says what the queue says of the same job when it is submitted."""
    running = await plane.started()
    dry_run()
    plan = await planned(plane)
    assert plan.outcome is OK
    job_id = await plane.submit()
    await plane.rounds(1)
    assert plan.waits_for == (await plane.job(job_id))["reason"]
    assert plan.waits_for is not None
    assert detail(plan, CheckName.CLUSTER) == f"it would wait: {plan.waits_for}"
    # Behind that one, another job waits for it.
    assert (await planned(plane)).waits_for == f"{plan.waits_for}, behind {job_id}"
    urgent = await planned(plane, queue={"priority": 1})
    assert urgent.waits_for == f"{plan.waits_for}; {running} makes room"


async def test_too_many_plans_at_once(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run(status=None)
    go_on = asyncio.Event()

    async def held(_seconds: float) -> None:
        await go_on.wait()

    plane.services.plans._pause = held
    running = [asyncio.create_task(planned(plane)) for _ in range(2)]
    while len(plane.ray.submissions) < 2:
        await asyncio.sleep(0)
    refused = await plane.http.post("/v1/plans", json=JOB)
    assert (refused.status_code, refused.json()["type"]) == (429, ProblemType.RATE_LIMITED.urn)
    assert refused.headers["Retry-After"] == "15"
    for run_id in plane.ray.submissions:
        plane.ray.says(run_id, RayStatus.SUCCEEDED)
    go_on.set()
    for plan in running:
        await plan
    dry_run()
    await planned(plane)


async def test_a_plan_that_is_cancelled_is_cleaned_up(plane: Plane) -> None:
    async def never(_seconds: float) -> None:
        # A job that is stopped is soon seen to have ended.
        if any(call.startswith("stop") for call in plane.ray.calls):
            [run_id] = plane.ray.submissions
            if plane.ray.calls[-1].startswith("stop"):
                plane.ray.says(run_id, RayStatus.STOPPED)
            return
        await asyncio.Event().wait()

    services = plane.services
    plans = PlanService("x --plan", services.jobs._jobs, plane.ray, services.jobs._quotas, plane.clock, never)
    task = asyncio.create_task(plans.plan(NO_TOKENS, parse_job(JOB)))
    while not plane.ray.submissions:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [call.split()[0] for call in plane.ray.calls] == ["submit", "stop", "forget"]
    assert plane.ray.jobs == {}


async def test_a_dry_run_that_comes_back_is_removed_again(
    plane: Plane, dry_run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    dry_run()
    forget = plane.ray.forget

    async def too_early(run_id: str) -> None:
        known = plane.ray.jobs[run_id]
        await forget(run_id)
        if len(plane.ray.calls) == 2:
            plane.ray.jobs[run_id] = known

    monkeypatch.setattr(plane.ray, "forget", too_early)
    await planned(plane)
    assert [call.split()[0] for call in plane.ray.calls] == ["submit", "forget", "forget"]
    assert plane.ray.jobs == {}


async def test_yaml_is_taken_too(plane: Plane, dry_run: Callable[..., None]) -> None:
    dry_run()
    headers = {"Content-Type": "application/yaml"}
    answer = await plane.http.post("/v1/plans", content="name: tiny\ndata: {source: synthetic}\n", headers=headers)
    assert answer.json()["outcome"] == "ok"


@pytest.mark.parametrize(("outcome", "status"), [(OK, 0), (NOT_CHECKED, 0), (NO, 1)])
def test_the_command(outcome: Outcome, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check(name=CheckName.DATA, outcome=outcome, detail="because of the shelf")]
    plan = Plan(outcome=outcome, checks=checks, resources=None, waits_for=None, training=TRAINING)
    monkeypatch.setattr("service.client.Client.plan", lambda _client, _file: plan)
    file = tmp_path / "job.yaml"
    file.write_text("name: tiny\n")
    shown = CliRunner().invoke(cli.app, ["plan", str(file)])
    assert shown.exit_code == status, shown.output
    for word in ("data", outcome.value.replace("_", " "), "because of the shelf", "10 steps on 2 ranks", "row_wise"):
        assert word in shown.output
    raw = CliRunner().invoke(cli.app, ["plan", str(file), "--json"])
    assert Plan.model_validate_json(raw.output) == plan


def test_the_command_refuses_a_job_file_that_is_not_valid(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: tiny\nwrkers: {}\n")
    result = CliRunner().invoke(cli.app, ["plan", str(file)])
    assert result.exit_code == cli.BAD_USAGE
    assert "did you mean 'workers'?" in result.output


def test_a_plan_without_a_training_is_only_checks() -> None:
    plan = Plan(outcome=NO, checks=[], resources=None, waits_for=None, training=None)
    assert len(plan_tables(plan).renderables) == 1
