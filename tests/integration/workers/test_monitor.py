"""The monitor as a Ray actor: found by name, and its death costs samples but no training."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import ray

from tests.integration.workers.conftest import TOKEN, Listener
from tests.unit.workers.samples import batch, sample
from workers.reports import JobPlan, JobResult
from workers.telemetry.keeper import MonitorKeeper
from workers.telemetry.monitor import Destination, MonitorLink, start_monitor
from workers.telemetry.sender import Fate, Limits, Telemetry

PLAN = JobPlan(steps=4, world_size=1, prioritized={}, not_prioritized={})
RESULT = JobResult(steps=4, samples=32, seconds=1.0, loss=0.5, metrics={}, checkpoint=None)


@pytest.fixture
def monitor(ray_address: str, listener: Listener) -> Iterator[Any]:
    handle = start_monitor("job-1", 1, Destination(listener.url, TOKEN))
    yield handle
    ray.kill(handle)


def telemetry(link: MonitorLink, rank: int = 0) -> Telemetry:
    started = Telemetry(link, rank, 0, Limits(interval_s=0.01))
    started.start()
    return started


def arrive(link: MonitorLink, *steps: int, recorded: int) -> None:
    """Send these steps until they have arrived: calls into a monitor that is being started again are lost."""
    for _ in range(100):
        ticket = link.send(batch(*steps, recorded=recorded))
        ray.wait([ticket], timeout=30)
        if link.fate(ticket) is Fate.ARRIVED:
            return
    raise AssertionError("the monitor never came back")


def wait_for_another(link: MonitorLink, incarnation: str) -> None:
    """Ask until another start of the monitor answers."""
    deadline_s = time.monotonic() + 60
    while link.incarnation in (None, incarnation):
        assert time.monotonic() < deadline_s, "the monitor never came back"
        with suppress(ray.exceptions.RayError):
            link.read_clock(5)


def kill(monitor: Any) -> None:
    """Ray notices it as it notices a machine that kills a process for its memory."""
    os.kill(ray.get(monitor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


def test_samples_reach_the_control_plane_and_the_totals(monitor: Any, listener: Listener) -> None:
    link, keeper = MonitorLink("job-1"), MonitorKeeper(monitor)
    assert [link.next_attempt(30), link.next_attempt(30)] == [0, 1]
    sender = telemetry(link)
    sender.announce(PLAN)
    for step in range(4):
        sender.record(sample(step))
    sender.close(timeout_s=30)
    assert sender.dropped == 0
    assert ray.get(monitor.finish.remote(30))
    assert [each.step for each in listener.samples] == [0, 1, 2, 3]
    assert listener.only("plan") == PLAN
    status = keeper.status(30)
    assert status is not None
    assert status.progress is not None
    assert (status.plan, status.progress.step, status.dropped) == (PLAN, 4, 0)
    summary = keeper.summary()
    assert summary is not None
    assert summary.totals.rank_steps == 4


def test_the_monitor_on_this_machine_has_this_machines_clock(monitor: Any, listener: Listener) -> None:
    link = MonitorLink("job-1")
    assert link.next_attempt(30) == 0, "it is there"
    sender = telemetry(link)
    sender.record(sample(0))
    sender.close(timeout_s=30)
    assert ray.get(monitor.finish.remote(30))
    (told,) = listener.samples
    assert told.clock_offset_ms is not None
    assert told.clock_uncertainty_ms is not None
    assert abs(told.clock_offset_ms) <= told.clock_uncertainty_ms + 1.0
    assert (told.time - sample(0).time).total_seconds() * 1e3 == pytest.approx(told.clock_offset_ms, abs=0.01)


def test_finishing_does_not_wait_for_ever_for_a_control_plane_that_is_away(monitor: Any, listener: Listener) -> None:
    listener.refuse = 1_000_000
    ray.get(monitor.ingest.remote(batch(0)))
    assert not ray.get(monitor.finish.remote(0.3))
    listener.refuse = 0
    assert ray.get(monitor.finish.remote(30))
    assert [each.step for each in listener.samples] == [0]


@pytest.mark.parametrize("how", ["asked by Ray", "SIGKILL"])
def test_a_monitor_that_dies_costs_what_was_under_way_and_comes_back(
    monitor: Any, listener: Listener, how: str
) -> None:
    """Plan, totals and count of what was lost are those of the whole run, and the result arrives."""
    link, keeper = MonitorLink("job-1"), MonitorKeeper(monitor)
    assert link.next_attempt(30) == 0
    sender = telemetry(link)
    sender.announce(PLAN)
    for step in range(2):
        sender.record(sample(step))
    sender.close(timeout_s=30)
    assert ray.get(monitor.finish.remote(30))
    before = keeper.status(30)
    assert before is not None
    # The control plane is away, so this one is acknowledged, is never delivered, and dies with the monitor.
    listener.refuse = 1_000_000
    arrive(link, 2, recorded=3)
    if how == "SIGKILL":
        kill(monitor)
    else:
        ray.kill(monitor, no_restart=False)
    wait_for_another(link, before.memory.incarnation)
    listener.refuse = 0
    arrive(link, 3, recorded=4)
    settled = keeper.conclude(RESULT, 30)
    assert settled is not None
    assert (settled.delivered, settled.dropped) == (True, 1)
    assert [each.step for each in listener.samples] == [0, 1, 3]
    assert listener.batches[-1].dropped == 1
    assert listener.only("result") == RESULT
    status, summary = keeper.status(30), keeper.summary()
    assert status is not None
    assert status.progress is not None
    assert summary is not None
    assert (status.plan, status.attempt, status.first_step, status.progress.step) == (PLAN, 0, 0, 4)
    assert summary.totals.rank_steps == 3


def test_a_result_that_dies_with_the_monitor_is_handed_over_again(monitor: Any, listener: Listener) -> None:
    keeper = MonitorKeeper(monitor)
    assert keeper.status(30) is not None
    listener.refuse = 1_000_000
    concluding = monitor.conclude.remote(None, RESULT, 60)
    assert not ray.wait([concluding], timeout=0.5)[0], "it waits for the control plane"
    kill(monitor)
    listener.refuse = 0
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(concluding, timeout=30)
    settled = keeper.conclude(RESULT, 30)
    assert settled is not None
    assert settled.delivered
    assert listener.only("result") == RESULT


def test_a_job_without_a_monitor_trains_and_counts_what_nobody_heard(ray_address: str) -> None:
    link = MonitorLink("nobody")
    with pytest.raises(ValueError, match="monitor:nobody"):
        link.next_attempt(30)
    sender = telemetry(link)
    sender.announce(PLAN)
    sender.record(sample())
    sender.close(timeout_s=30)
    assert sender.dropped == 1
