"""What a run tells and keeps, whatever happens to it: in its storage without a control plane, and on the terminal."""

import os
import re
import signal
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import ray

from benchmarks.faults.injection import Fault, Kind
from benchmarks.faults.struck import job
from tests.integration.workers.conftest import Jobs, Listener
from tests.integration.workers.test_train import JOB, STEPS
from workers.reports import WARMUP_STEPS, RunRecord, StepSample
from workers.run import ExitStatus
from workers.telemetry.archive import SCHEMA
from workers.telemetry.monitor import NAMESPACE, actor_name

EPOCHS = 40
LONG_JOB = {**JOB, "training": {"batch_size": 32, "epochs": EPOCHS}}


def telemetry(jobs: Jobs, job_id: str) -> Path:
    return Path(jobs.storage) / job_id / "telemetry"


def stored(folder: Path) -> list[StepSample]:
    """The rows of all parts; each part must be whole."""
    samples: list[StepSample] = []
    for part in sorted(folder.glob("steps-*.parquet")):
        table = pq.read_table(part)
        assert table.schema.equals(SCHEMA)
        samples += [StepSample.model_validate(row) for row in table.to_pylist()]
    return samples


def record(folder: Path) -> RunRecord:
    return RunRecord.model_validate_json((folder / "_run.json").read_bytes())


def fragile(marker: Path, calls: int) -> dict[str, Any]:
    params = {"marker": str(marker), "rank": 1, "calls": calls}
    return {"factory": "tests.integration.workers.fragile:ranker", "params": params}


def test_without_a_control_plane_every_step_of_every_rank_stands_in_the_storage_once(jobs: Jobs) -> None:
    status, output = jobs.run(JOB, "alone-1")
    assert status == ExitStatus.SUCCEEDED, output
    folder = telemetry(jobs, "alone-1")
    samples = stored(folder)
    assert sorted((each.rank, each.step) for each in samples) == [(r, s) for r in (0, 1) for s in range(STEPS)]
    assert all(each.clock_offset_ms is not None and each.clock_uncertainty_ms is not None for each in samples)
    assert all(each.collectives and each.loss is not None for each in samples)
    told = record(folder)
    assert told.plan is not None
    assert told.result is not None
    assert (told.plan.world_size, told.result.steps, told.failure, told.dropped) == (2, STEPS, None, 0)
    assert output.splitlines().count(f"reports: {folder}") == 1
    assert output.splitlines().count("waiting for 2 workers to start") == 1
    assert output.splitlines().count(f"{STEPS} steps on 2 ranks") == 1


def test_a_restart_is_told_of_and_both_attempts_stand_in_the_storage(jobs: Jobs, tmp_path: Path) -> None:
    model = fragile(tmp_path / "failed", calls=8)
    job = {**JOB, "model": model, "retries": {"max": 1}, "checkpoint": {"every_steps": 5}}
    status, output = jobs.run(job, "alone-2")
    assert status == ExitStatus.SUCCEEDED, output
    (failed,) = [line for line in output.splitlines() if line.startswith("attempt 1 failed: rank 1")]
    assert "ArithmeticError: the head is upset" in failed
    assert failed.endswith("; starting again, 1 retry at most")
    assert output.splitlines().count("attempt 2: from step 5") == 1
    samples = stored(telemetry(jobs, "alone-2"))
    assert {each.step for each in samples if each.attempt == 1} == set(range(5, STEPS))
    assert {each.step for each in samples if each.attempt == 0} >= set(range(5))
    assert record(telemetry(jobs, "alone-2")).plan.attempt == 1  # type: ignore[union-attr]


def test_a_worker_that_is_killed_is_told_of_with_its_node(jobs: Jobs, tmp_path: Path) -> None:
    fault = Fault(kind=Kind.KILL, place="backward", rank=1, count=3, marker=tmp_path / "struck")
    status, output = jobs.run(job([fault], retries={"max": 1}), "alone-5")
    assert status == ExitStatus.SUCCEEDED, output
    (failed,) = [line for line in output.splitlines() if line.startswith("attempt 1 failed: ")]
    # Ray may hear from the rank that lost its peer before it sees that the other one is dead.
    assert re.match(r"attempt 1 failed: rank [01] on node [\d.]+[:,] .+; starting again, 1 retry at most", failed), (
        failed
    )


def test_a_failure_stands_in_the_storage(jobs: Jobs, tmp_path: Path) -> None:
    status, output = jobs.run({**JOB, "model": fragile(tmp_path / "failed", calls=3)}, "alone-3")
    assert status == ExitStatus.FAILED, output
    told = record(telemetry(jobs, "alone-3"))
    assert told.failure is not None
    assert "ArithmeticError: the head is upset" in told.failure.message
    assert output.count("ArithmeticError: the head is upset; starting again") == 0
    assert f"reports: {telemetry(jobs, 'alone-3')}" in output.splitlines()


def test_a_driver_that_is_killed_leaves_whole_parts(jobs: Jobs) -> None:
    process = jobs.start({**JOB, "training": {"batch_size": 32, "epochs": 1_000_000}}, "alone-4")
    folder = telemetry(jobs, "alone-4")
    try:
        deadline_s = time.monotonic() + 120
        while not list(folder.glob("steps-*.parquet")):
            assert time.monotonic() < deadline_s, "no part was written"
            assert process.poll() is None
            time.sleep(0.2)
    finally:
        process.kill()
        process.communicate()
    samples = stored(folder)
    assert len(samples) > 2
    assert len({(each.rank, each.step) for each in samples}) == len(samples)
    assert record(folder).plan is not None


def test_a_monitor_that_is_killed_while_ranks_train_comes_back_with_plan_and_totals(
    jobs: Jobs, listener: Listener
) -> None:
    process = jobs.start(LONG_JOB, "struck-1", listener.url)
    try:
        assert listener.stepped.wait(120), "no step was reported"
        monitor = ray.get_actor(actor_name("struck-1"), namespace=NAMESPACE)
        os.kill(ray.get(monitor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        # Counted after the kill: until then the monitor that dies goes on taking samples.
        before = len(listener.samples)
        output, _ = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == ExitStatus.SUCCEEDED, output
    steps = EPOCHS * STEPS
    assert listener.only("result").steps == steps
    seen = {(each.rank, each.step) for each in listener.samples}
    assert len(seen) == len(listener.samples), "nothing is told twice"
    lost = 2 * steps - len(seen)
    assert lost <= listener.batches[-1].dropped, "what was lost is counted"
    plans = [each.plan for each in listener.batches if each.plan is not None]
    assert {plan.world_size for plan in plans} == {2}
    assert output.splitlines().count(f"{steps} steps on 2 ranks") == 1
    (measured,) = re.findall(r"struck-1: mean per step of one rank, measured in ([\d,]+) of them", output)
    # The driver may not have asked yet for what was counted just before, and one batch was on its way from the monitor
    # that died: the first that came after it was counted, if any.
    totals = accumulate(len(each.samples) for each in listener.batches)
    under_way = next(len(each.samples) for each, total in zip(listener.batches, totals, strict=True) if total > before)
    assert int(measured.replace(",", "")) >= len(seen) - before - under_way - 2 * 2 * WARMUP_STEPS


def test_an_elastic_group_takes_the_room_there_is(jobs: Jobs, listener: Listener) -> None:
    """How many ranks there are, only the plan can tell: Ray keeps what a killed job had asked for free for a while."""
    status, output = jobs.run({**JOB, "workers": {"count": {"min": 1, "max": 4}}}, "elastic-1", listener.url)
    assert status == ExitStatus.SUCCEEDED, output
    assert "waiting for 1-4 workers to start" in output.splitlines()
    plan = listener.only("plan")
    ranks = plan.world_size
    assert 1 <= ranks <= 3, "as many as the cluster has CPUs"
    seen = sorted((each.rank, each.step) for each in listener.samples)
    assert seen == [(rank, step) for rank in range(ranks) for step in range(plan.steps)]
    assert f"{plan.steps} steps on {ranks} rank" in output
    assert f"{plan.steps} steps, 960 samples in " in output
    assert "loss 0." in output, "the totals know when a step is complete"
