"""A run on Ray that meets faults ends with the weights of the run that met none.

What strikes at random moments is `make bench ARGS=faults`; here each kind strikes once, where it hurts most.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.faults.injection import UPLOAD, WRITE, Fault, Kind
from benchmarks.faults.struck import DATA, MODEL, STEPS, end_state, job
from tests.integration.workers.conftest import Jobs, Listener
from tests.integration.workers.loops import assert_same_state, train_case
from tests.ranks import RankPool
from workers.run import ExitStatus
from workers.training.state import tensors_in

FRAGILE = "tests.integration.workers.fragile"


def test_workers_killed_between_ol_and_nol_gradients_and_while_a_checkpoint_is_written(
    jobs: Jobs, unstruck: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    def kill(place: str, rank: int, count: int, after: Fault | None = None) -> Fault:
        marker = tmp_path / f"{place}-{rank}"
        return Fault(kind=Kind.KILL, place=place, rank=rank, count=count, marker=marker, after=after and after.marker)

    # Each strikes the attempt after the one before. The counts start again there, and whether the last checkpoint
    # counted when its writer was killed is a matter of chance, so they are small enough for both.
    first = kill("nol_gradient_a2a", 1, 7)
    second = kill(WRITE, 0, 1, after=first)
    faults = [first, second, kill(UPLOAD, 1, 0, after=second)]
    status, output = jobs.run(job(faults, retries={"max": 3}), "killed")
    assert status == ExitStatus.SUCCEEDED, output
    assert all(fault.marker.exists() for fault in faults)
    assert_same_state(end_state(jobs.storage / "killed"), unstruck)


def test_a_worker_that_hangs_is_named_with_its_stage_and_its_stack(
    jobs: Jobs, listener: Listener, tmp_path: Path
) -> None:
    fault = Fault(kind=Kind.HANG, place="forward", rank=1, count=6, marker=tmp_path / "hangs")
    workers = {"count": 2, "hang_timeout_s": 3}
    status, output = jobs.run(job([fault], workers=workers), "hung", listener.url)
    assert status == ExitStatus.FAILED, output
    failure = listener.only("failure")
    assert failure.message.startswith("rank 1 on node ")
    assert ", at stage forward of step 6: HungError: no progress for 3 s" in failure.message
    assert failure.traceback.count("in struck_run") == 1


def test_a_worker_that_is_killed_is_named_with_its_node_and_not_the_one_that_waited_for_it(
    jobs: Jobs, listener: Listener, tmp_path: Path
) -> None:
    fault = Fault(kind=Kind.KILL, place="nol_gradient_a2a", rank=1, count=12, marker=tmp_path / "killed")
    status, output = jobs.run(job([fault]), "killed-once", listener.url)
    assert status == ExitStatus.FAILED, output
    message = listener.only("failure").message
    assert message.startswith("rank 1 on node "), message
    # Ray looks at the ranks in turn: the other may not have told yet that it has lost its peer.
    alone, _, told = message.partition(" (also failed: rank 0); rank 0 was at stage ")
    assert alone.endswith("its worker process has died."), message
    assert not told or " of step " in told, message


def test_a_driver_that_is_killed_goes_on_when_its_job_is_submitted_again(
    jobs: Jobs, unstruck: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    fault = Fault(
        kind=Kind.KILL_DRIVER, place="backward", rank=0, count=17, marker=tmp_path / "struck", driver=tmp_path / "pid"
    )
    process = jobs.start(job([fault]), "driver-killed")
    (tmp_path / "pid").write_text(f"{process.pid}")
    try:
        process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == -9
    status, output = jobs.run(job([fault]), "driver-killed")
    assert status == ExitStatus.SUCCEEDED, output
    assert fault.marker.exists()
    assert "30 steps, " in output
    assert_same_state(end_state(jobs.storage / "driver-killed"), unstruck)


def test_a_monitor_that_is_killed_changes_nothing(
    jobs: Jobs, unstruck: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    fault = Fault(
        kind=Kind.KILL_MONITOR, place="backward", rank=0, count=17, marker=tmp_path / "struck", job_id="unwatched"
    )
    status, output = jobs.run(job([fault]), "unwatched")
    assert status == ExitStatus.SUCCEEDED, output
    assert fault.marker.exists()
    assert_same_state(end_state(jobs.storage / "unwatched"), unstruck)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for one checkpoint and a little more."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=320k", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"needs to mount a file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_said_and_the_checkpoint_before_it_is_good(
    ray_address: str, listener: Listener, small_disk: Path, unstruck: dict[str, torch.Tensor]
) -> None:
    jobs = Jobs(ray_address, small_disk)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 150_000)
    status, output = jobs.run(job([], checkpoint={"every_steps": 5, "keep": 9}), "filled", listener.url)
    assert status == ExitStatus.FAILED, output
    assert "No space left on device" in listener.only("failure").message
    filler.unlink()
    status, output = jobs.run(job([], checkpoint={"every_steps": 100, "keep": 1}), "filled")
    assert status == ExitStatus.SUCCEEDED, output
    assert_same_state(end_state(small_disk / "filled"), unstruck)


def test_a_step_whose_loss_is_not_finite_is_left_out_if_the_job_says_so(
    jobs: Jobs, ranks: RankPool, tmp_path: Path
) -> None:
    """With the weights of a run whose data never held it, and from the checkpoint before it."""
    data = {"source": f"{FRAGILE}:poisoned", "params": {**DATA, "poisoned_step": 12}}
    training = {"batch_size": 32, "max_skipped_steps": 1}
    status, output = jobs.run(job([], model={"params": MODEL}, data=data, training=training), "skips")
    assert status == ExitStatus.SUCCEEDED, output
    assert "leaving out a step" in output
    lacks = {"source": f"{FRAGILE}:shorter", "params": {**DATA, "missing_step": 12}}
    training = {"batch_size": 32, "epochs": 1}
    ranks.run(2, train_case, folder=tmp_path, training=training, model={"params": MODEL}, data=lacks)
    assert_same_state(end_state(jobs.storage / "skips"), tensors_in(tmp_path / f"step-{STEPS - 1}"))
