"""A job on Ray that is told to stop: it saves first and goes on from there, unless that takes too long."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.faults.injection import Fault, Kind
from benchmarks.faults.struck import STEPS, end_state, job
from tests.integration.workers.conftest import Jobs, Listener
from tests.integration.workers.loops import assert_same_state
from workers.reports import JobStop, StepSample
from workers.run import ExitStatus

# None of them is due before the end of the job.
RARELY = {"every_steps": 100}
HELD_AT = 12


def fault(kind: Kind, tmp_path: Path) -> Fault:
    """Holds rank 0 in the middle of the training, once."""
    return Fault(kind=kind, place="backward", rank=0, count=HELD_AT, marker=tmp_path / "struck")


@contextmanager
def held(jobs: Jobs, spec: dict[str, Any], job_id: str, listener: Listener, marker: Path) -> Iterator[Any]:
    """The job's driver, while rank 0 stands in the step where the fault has struck it."""
    process = jobs.start(spec, job_id, listener.url)
    try:
        deadline_s = time.monotonic() + 120
        # Before the plan is told, the driver takes it that there is no step to save.
        while not (marker.exists() and any(batch.plan for batch in listener.batches)):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline_s, "the fault did not strike"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()


def end_of(process: "subprocess.Popen[str]") -> str:
    """What the driver of a stopped job has printed."""
    output, _ = process.communicate(timeout=120)
    assert process.returncode == ExitStatus.STOPPED, output
    return output


def trained(samples: list[StepSample]) -> list[tuple[int, int]]:
    return sorted((each.step, each.rank) for each in samples)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_job_that_is_told_to_stop_saves_and_goes_on_from_there(
    jobs: Jobs, listener: Listener, unstruck: dict[str, torch.Tensor], tmp_path: Path, number: signal.Signals
) -> None:
    waits = fault(Kind.WAIT_FOR_STOP, tmp_path)
    spec = job([waits], checkpoint=RARELY)
    with held(jobs, spec, "saves", listener, waits.marker) as process:
        process.send_signal(number)
        output = end_of(process)
    saved = listener.only("stop").saved_at_step
    assert HELD_AT < saved < STEPS
    assert "stopping: saves first, for 60 s at most; interrupt again to end it at once" in output
    assert f"stopped; saved at step {saved}" in output.splitlines()
    assert [path.name for path in (jobs.storage / "saves").glob("step-*")] == [f"step-{saved:08d}-attempt-0"]
    assert trained(listener.samples) == [(step, rank) for step in range(saved) for rank in (0, 1)]

    listener.batches.clear()
    status, output = jobs.run(spec, "saves", listener.url)
    assert status == ExitStatus.SUCCEEDED, output
    assert trained(listener.samples) == [(step, rank) for step in range(saved, STEPS) for rank in (0, 1)]
    assert_same_state(end_state(jobs.storage / "saves"), unstruck)


def test_a_job_that_hangs_when_it_is_told_to_stop_is_ended(jobs: Jobs, listener: Listener, tmp_path: Path) -> None:
    hangs = fault(Kind.HANG, tmp_path)
    spec = job([hangs], checkpoint={**RARELY, "stop_grace_s": 3})
    with held(jobs, spec, "hangs", listener, hangs.marker) as process:
        process.send_signal(signal.SIGTERM)
        output = end_of(process)
    problem = "there was no checkpoint within checkpoint.stop_grace_s=3"
    assert listener.only("stop") == JobStop(problem=problem)
    assert f"stopped; not saved: {problem}" in output.splitlines()
    assert list((jobs.storage / "hangs").glob("step-*")) == []


def test_a_second_interrupt_ends_a_job_that_saves(jobs: Jobs, listener: Listener, tmp_path: Path) -> None:
    hangs = fault(Kind.HANG, tmp_path)
    spec = job([hangs], checkpoint={**RARELY, "stop_grace_s": 3600})
    with held(jobs, spec, "impatient", listener, hangs.marker) as process:
        process.send_signal(signal.SIGINT)
        for line in process.stdout:
            if line.startswith("stopping: saves first"):
                break
        process.send_signal(signal.SIGINT)
        output = end_of(process)
    assert listener.only("stop") == JobStop(problem="told to end at once")
    assert "stopped; not saved: told to end at once" in output.splitlines()
