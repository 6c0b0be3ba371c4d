"""`python -m workers.train` on a local Ray, from the job file to the exit status."""

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from tests.integration.workers.conftest import TOKEN, Jobs, Listener
from workers.run import ExitStatus

ROWS = 300
JOB: dict[str, Any] = {
    "name": "small",
    "model": {"params": {"embedding_dim": 8, "hidden": [8]}},
    "data": {"source": "synthetic", "params": {"samples": 960, "rows": ROWS, "id_overlap": 0.5, "holdout_samples": 64}},
    "training": {"batch_size": 32},
    "workers": {"count": 2},
    "retries": {"max": 0},
}
STEPS = 15


def test_a_job_trains_reports_and_leaves_a_checkpoint(jobs: Jobs, listener: Listener) -> None:
    listener.refuse = 2
    status, output = jobs.run(JOB, "small-1", listener.url)
    assert status == ExitStatus.SUCCEEDED, output
    _assert_table(output)
    assert listener.paths == {("/internal/v1/jobs/small-1/reports", f"Bearer {TOKEN}")}
    assert sorted((each.rank, each.step) for each in listener.samples) == [(r, s) for r in (0, 1) for s in range(STEPS)]
    assert {each.attempt for each in listener.samples} == {0}
    assert all(each.loss is not None and each.step_ms > 0 and each.comm_ms > 0 for each in listener.samples)
    assert {each.id_overlap for each in listener.samples if each.step > 0} == {0.5}
    assert listener.batches[-1].dropped == 0
    plan, result = listener.only("plan"), listener.only("result")
    assert (plan.steps, plan.world_size, list(plan.prioritized)) == (STEPS, 2, ["embeddings"])
    assert (result.steps, result.samples) == (STEPS, 960)
    assert 0 <= result.metrics["auc"] <= 1
    _assert_loadable(Path(result.checkpoint), jobs.storage / "small-1")


def _assert_table(output: str) -> None:
    for row in ("step", "compute", "all communication", "embedding OL", "embedding NOL", "gradient OL", "gradient NOL"):
        assert f" {row} " in output
    assert f"{STEPS} steps, 960 samples in " in output
    assert "held-out auc: 0." in output
    assert "The first 3 steps are left out of the table as warm-up." in output


def _assert_loadable(checkpoint: Path, run_folder: Path) -> None:
    """One process, without a process group, reads the whole table that two ranks wrote."""
    assert checkpoint.parent == run_folder
    table = torch.full((ROWS, 8), torch.nan)
    state = {"model": {"embeddings.embeddings.t0.weight": table}, "position.steps": -1}
    load(state, storage_reader=FileSystemReader(checkpoint), no_dist=True)
    assert state["position.steps"] == STEPS
    assert table.isfinite().all()
    assert len(table.unique(dim=0)) == ROWS


def test_a_worker_that_fails_once_starts_again_at_its_checkpoint(
    jobs: Jobs, listener: Listener, tmp_path: Path
) -> None:
    job = {
        **JOB,
        "model": _fragile(tmp_path / "failed", calls=8),
        "retries": {"max": 1},
        "checkpoint": {"every_steps": 5, "keep": 1},
    }
    status, output = jobs.run(job, "fragile-1", listener.url)
    assert status == ExitStatus.SUCCEEDED, output
    steps = {attempt: {each.step for each in listener.samples if each.attempt == attempt} for attempt in (0, 1)}
    assert steps[0] >= set(range(5))
    assert steps[1] == set(range(5, STEPS))
    assert listener.only("result").steps == STEPS
    assert [path.name for path in (jobs.storage / "fragile-1").glob("step-*")] == [f"step-{STEPS:08d}-attempt-1"]


def test_a_worker_that_fails_too_often_fails_the_job_and_is_named(
    jobs: Jobs, listener: Listener, tmp_path: Path
) -> None:
    job = {**JOB, "model": _fragile(tmp_path / "failed", calls=3)}
    status, output = jobs.run(job, "fragile-2", listener.url)
    assert status == ExitStatus.FAILED, output
    failure = listener.only("failure")
    assert re.match(
        r"rank 1 on node \S+, at stage forward of step 2: ArithmeticError: the head is upset", failure.message
    )
    assert f"\nfailed: {failure.message}\n" in output
    assert failure.traceback.count("in fail_once") == 1


def _fragile(marker: Path, calls: int) -> dict[str, Any]:
    params = {"marker": str(marker), "rank": 1, "calls": calls}
    return {"factory": "tests.integration.workers.fragile:ranker", "params": params}


def test_what_no_retry_can_cure_is_not_tried_again(jobs: Jobs, listener: Listener) -> None:
    job = {**JOB, "model": {"params": {"embedding_dimension": 8}}, "retries": {"max": 3}}
    status, output = jobs.run(job, "wrong-1", listener.url)
    assert status == ExitStatus.FAILED, output
    assert "model.params.embedding_dimension: unknown field" in listener.only("failure").message
    assert "RETRY" not in output


def test_a_loss_that_is_not_finite_fails_the_job_once_and_keeps_the_batch(jobs: Jobs, listener: Listener) -> None:
    training = {**JOB["training"], "dense_lr": 1e30}
    job = {**JOB, "training": training, "checkpoint": {"every_steps": 1}, "retries": {"max": 3}}
    status, output = jobs.run(job, "diverging-1", listener.url)
    assert status == ExitStatus.FAILED, output
    message = listener.only("failure").message
    assert message.startswith("the loss of step ")
    assert "RETRY" not in output
    (archive, *_) = sorted((jobs.storage / "diverging-1").glob("not-finite-step-*.npz"))
    assert f"batch kept as {archive}" in message
    with np.load(archive) as kept:
        assert len(kept["labels"]) == 32
        assert kept["f0.lengths"].sum() == len(kept["f0.values"])


def test_more_workers_than_the_cluster_holds_is_said_at_once(jobs: Jobs, listener: Listener) -> None:
    status, output = jobs.run({**JOB, "workers": {"count": 4}}, "large-1", listener.url)
    assert status == ExitStatus.FAILED, output
    assert "failed: workers: needs 4 CPUs for 4 workers, the cluster has 3; ask for fewer or smaller workers" in output
    assert "needs 4 CPUs for 4 workers" in listener.only("failure").message


def test_an_interrupt_stops_the_run_and_delivers_what_was_measured(jobs: Jobs, listener: Listener) -> None:
    endless = {**JOB, "training": {"batch_size": 32, "epochs": 1_000_000}}
    process = jobs.start(endless, "endless-1", listener.url)
    try:
        assert listener.stepped.wait(120), "no step was reported"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == ExitStatus.STOPPED, output
    steps = listener.only("stop").saved_at_step
    assert f"stopped; saved at step {steps}" in output.splitlines()
    assert max(each.step for each in listener.samples) == steps - 1
    assert not any(batch.result or batch.failure for batch in listener.batches)


def test_a_job_that_is_not_valid_never_reaches_ray(tmp_path: Path) -> None:
    status, output = Jobs("127.0.0.1:1", tmp_path).run({**JOB, "wrokers": {}}, "invalid-1")
    assert status == ExitStatus.INVALID_JOB
    assert output == "wrokers: unknown field; did you mean 'workers'?\n"
