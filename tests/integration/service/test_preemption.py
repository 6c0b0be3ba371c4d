"""A training that makes room for a more urgent one, on a real Ray: it saves, and goes on from there."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.injection import Fault, Kind
from benchmarks.faults.struck import DATA, MODEL, STEPS, end_state, job
from service.client import Client
from service.models import Job, JobState, StateChange
from service.server import control_plane
from service.settings import Settings
from tests.integration.workers.loops import assert_same_state, train_case
from tests.ranks import RankPool
from workers.training.state import tensors_in

ROOT = Path(__file__).parents[3]
PATIENCE_S = 180.0
HELD_AT = 12


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def plane(home: Path) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as patch:
        # For the workers, which import the faults.
        patch.setenv("PYTHONPATH", str(ROOT))
        settings = Settings(host="127.0.0.1", port=0, home=home, cluster_cpus=2, entrypoint=None, ray_address=None)
        with control_plane(settings) as running, Client(running.url) as client:
            yield client


def submit(plane: Client, folder: Path, kind: Kind, priority: int) -> tuple[Job, Path]:
    """Submit the small job with a fault in the middle of it, and regular checkpoints none of which is ever due; also
    the file that says that the fault has struck.
    """
    fault = Fault(kind=kind, place="backward", rank=0, count=HELD_AT, marker=folder / f"struck-{priority}")
    spec = job([fault], checkpoint={"every_steps": 10 * STEPS}, queue={"priority": priority})
    file = folder / f"job-{priority}.json"
    file.write_text(json.dumps(spec))
    return plane.submit(file), fault.marker


def wait(plane: Client, job: Job, wanted: Callable[[Job], bool]) -> Job:
    deadline_s = time.monotonic() + PATIENCE_S
    while not wanted(job := plane.job(job.id)):
        assert not job.state.ended, f"{job}\n{plane.logs(job.id)[0]}"
        assert time.monotonic() < deadline_s, f"{job}\n{plane.logs(job.id)[0]}"
        time.sleep(0.1)
    return job


def stored(plane: Client, job: Job) -> list[tuple[int, int, int]]:
    return [(each.step, each.rank, each.attempt) for each in plane.steps(job.id).items]


def test_a_preempted_training_does_no_step_twice(plane: Client, home: Path, ranks: RankPool, tmp_path: Path) -> None:
    low, struck = submit(plane, tmp_path, Kind.WAIT_FOR_STOP, priority=0)
    wait(plane, low, lambda job: job.plan is not None and struck.exists())
    high, marker = submit(plane, tmp_path, Kind.WAIT, priority=1)
    wait(plane, high, lambda _: marker.exists())

    before = stored(plane, low)
    saved = 1 + max(step for step, _, _ in before)
    assert HELD_AT < saved < STEPS
    assert before == [(step, rank, 0) for step in range(saved) for rank in (0, 1)]

    marker.with_suffix(".go").touch()
    for each in (high, low):
        assert wait(plane, each, lambda job: job.state.ended).state is JobState.SUCCEEDED
    told = [event for events in plane.follow_events(low.id) for event in events if isinstance(event, StateChange)]
    (requeued,) = [change.reason for change in told if change.state is JobState.QUEUED and change.reason is not None]
    assert requeued == f"made room for {high.id}; saved at step {saved}"
    assert stored(plane, low) == [*before, *((step, rank, 1) for step in range(saved, STEPS) for rank in (0, 1))]

    training: dict[str, Any] = {"batch_size": 32, "epochs": 1}
    data = {"source": "synthetic", "params": DATA}
    ranks.run(2, train_case, folder=tmp_path, training=training, model={"params": MODEL}, data=data)
    assert_same_state(end_state(home / "storage" / low.id), tensors_in(tmp_path / f"step-{STEPS}"))
