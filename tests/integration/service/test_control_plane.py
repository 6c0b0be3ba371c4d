"""The control plane on a real embedded Ray, with a job process that trains nothing."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.client import Client
from service.cluster.embedded import private_folder_of
from service.models import Job, JobState, StateChange
from service.server import control_plane
from service.settings import Settings
from tests.integration.service.processes import of_home

ENTRYPOINT = Path(__file__).parent / "entrypoint.py"
PATIENCE_S = 180.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("home")
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(ENTRYPOINT))}"
    return Settings(host="127.0.0.1", port=0, home=home, cluster_cpus=2, entrypoint=command, ray_address=None)


@pytest.fixture(scope="module")
def plane(settings: Settings) -> Iterator[Client]:
    home = settings.home
    with control_plane(settings) as running, Client(running.url) as client:
        assert of_home(home)
        yield client
    assert of_home(home) == []
    assert not private_folder_of(home).exists()


@pytest.fixture
def submit(plane: Client, tmp_path: Path) -> Callable[..., Job]:
    """Submit a job whose process does what `todo` says."""

    def submitted(count: int = 1, priority: int = 0, **todo: Any) -> Job:
        file = tmp_path / "job.json"
        spec = {"name": "tiny", "data": {"source": "synthetic"}, "workers": {"count": count}, "model": {"params": todo}}
        spec |= {"queue": {"priority": priority}, "checkpoint": {"every_steps": 10}}
        file.write_text(json.dumps(spec))
        return plane.submit(file)

    return submitted


def wait(plane: Client, job: Job, wanted: Callable[[Job], bool]) -> Job:
    deadline = time.monotonic() + PATIENCE_S
    while not wanted(job := plane.job(job.id)):
        assert time.monotonic() < deadline, f"{job}\n{plane.logs(job.id)[0]}"
        time.sleep(0.1)
    return job


def ended(job: Job) -> bool:
    return job.state.ended


def test_a_job_runs_reports_and_succeeds(plane: Client, submit: Callable[..., Job]) -> None:
    job = wait(plane, submit(count=2, steps=3, ray=True), ended)
    log, offset = plane.logs(job.id)
    assert job.state is JobState.SUCCEEDED, log
    assert "größe: hello\n" in log
    assert "CPUs of the cluster: 2\n" in log, "a driver gets in, with the token that the head was given"
    assert offset == len(log.encode())
    assert job.latest is not None
    assert (job.latest.step, job.latest.rank_count, job.latest.comm_overlap) == (2, 2, 0.75)
    assert [(step.step, step.rank) for step in plane.steps(job.id).items] == [
        (s, r) for s in range(3) for r in range(2)
    ]
    assert plane.overlap(job.id).steps == 3


def test_a_job_fails_with_its_reason(plane: Client, submit: Callable[..., Job]) -> None:
    job = wait(plane, submit(failure="rank 0: no such column", status=3), ended)
    assert (job.state, job.reason) == (JobState.FAILED, "rank 0: no such column")
    assert job.failure is not None
    assert job.failure.traceback == "Traceback: of the rank"
    assert "größe: hello" in plane.logs(job.id)[0]


def test_a_running_job_stops_cleanly(plane: Client, submit: Callable[..., Job]) -> None:
    job = wait(plane, submit(hang=True, steps=1), lambda job: job.state is JobState.RUNNING)
    assert plane.stop(job.id).state is JobState.STOPPING
    job = wait(plane, job, ended)
    assert (job.state, job.reason) == (JobState.STOPPED, "saved at step 1")
    assert "interrupted, ending cleanly" in plane.logs(job.id)[0]
    plane.delete(job.id)


def test_a_job_that_is_stopped_at_once_stops(plane: Client, submit: Callable[..., Job]) -> None:
    """Wherever the stop meets it: in the queue, on its way to Ray, or pending there."""
    job = submit(hang=True)
    plane.stop(job.id)
    assert wait(plane, job, ended).state is JobState.STOPPED


def test_the_next_job_waits_for_room(plane: Client, submit: Callable[..., Job]) -> None:
    first = wait(plane, submit(count=2, hang=True, steps=1), lambda job: job.state is JobState.RUNNING)
    second = wait(plane, submit(), lambda job: job.reason is not None)
    assert (second.state, second.reason) == (JobState.QUEUED, "needs 1 CPU, 0 of 2 free")
    assert plane.cluster().resources.available["CPU"] == 0
    plane.stop(first.id)
    assert wait(plane, second, ended).state is JobState.SUCCEEDED


def test_a_job_makes_room_and_comes_back(plane: Client, submit: Callable[..., Job]) -> None:
    low = wait(plane, submit(count=2, hang=True, steps=1), lambda job: job.state is JobState.RUNNING)
    high = wait(plane, submit(count=2, priority=1), ended)
    assert high.state is JobState.SUCCEEDED
    low = wait(plane, low, lambda job: job.state is JobState.RUNNING)
    assert low.attempts == 2
    assert plane.logs(low.id)[0].count("hello") == 2, "Ray takes the id again, and goes on with its log"
    assert [(step.step, step.attempt) for step in plane.steps(low.id).items] == [(0, 1), (0, 1)]
    plane.stop(low.id)
    assert wait(plane, low, ended).state is JobState.STOPPED
    told = [event for events in plane.follow_events(low.id) for event in events if isinstance(event, StateChange)]
    assert f"made room for {high.id}; saved at step 1" in [change.reason for change in told]


def test_what_others_submit_is_shown(plane: Client, submit: Callable[..., Job], settings: Settings) -> None:
    own = wait(plane, submit(), ended)
    token = (settings.home / "ray" / "token").read_text()
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, base_url=plane.cluster().ray_address) as ray:
        body = {"submission_id": "by-hand", "entrypoint": "echo mine"}
        ray.post("/api/jobs/", json=body, timeout=PATIENCE_S).raise_for_status()
        runs = {run.id: run for run in plane.runs().items}
        assert (runs["by-hand"].entrypoint, own.id in runs) == ("echo mine", False)
        while plane.runs().items[0].state is not JobState.SUCCEEDED:
            time.sleep(0.1)


def test_the_cluster_is_closed_to_strangers(plane: Client) -> None:
    assert httpx.get(f"{plane.cluster().ray_address}/api/version").status_code == 401
