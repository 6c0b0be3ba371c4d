"""The monitor as a Ray actor: found by name, and its death costs samples but no training."""

from collections.abc import Iterator
from typing import Any

import pytest
import ray

from tests.integration.workers.conftest import TOKEN, Listener
from tests.unit.workers.samples import encoded, sample
from workers.reports import JobPlan
from workers.telemetry.monitor import Destination, MonitorLink, start_monitor
from workers.telemetry.sender import Fate, Limits, Telemetry

PLAN = JobPlan(steps=4, world_size=1, prioritized={}, not_prioritized={})


@pytest.fixture
def monitor(ray_address: str, listener: Listener) -> Iterator[Any]:
    handle = start_monitor("job-1", 1, Destination(listener.url, TOKEN))
    yield handle
    ray.kill(handle)


def telemetry(link: MonitorLink) -> Telemetry:
    started = Telemetry(link, 0, 0, Limits(interval_s=0.01))
    started.start()
    return started


def test_samples_reach_the_control_plane_and_the_totals(monitor: Any, listener: Listener) -> None:
    link = MonitorLink("job-1")
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
    status = ray.get(monitor.status.remote())
    assert (status.plan, status.progress.step, status.dropped) == (PLAN, 4, 0)
    assert ray.get(monitor.summary.remote()).totals.rank_steps == 4


def test_finishing_does_not_wait_for_ever_for_a_control_plane_that_is_away(monitor: Any, listener: Listener) -> None:
    listener.refuse = 1_000_000
    ray.get(monitor.ingest.remote(0, 0, encoded(0), 0))
    assert not ray.get(monitor.finish.remote(0.3))
    listener.refuse = 0
    assert ray.get(monitor.finish.remote(30))
    assert [each.step for each in listener.samples] == [0]


def test_a_monitor_that_dies_costs_what_was_under_way_and_comes_back(monitor: Any, listener: Listener) -> None:
    link = MonitorLink("job-1")
    assert link.next_attempt(30) == 0
    ray.kill(monitor, no_restart=False)
    sender = telemetry(link)
    sender.record(sample(0))
    sender.close(timeout_s=30)
    # Ray needs a moment to notice the death; what was sent into it is lost and counted, the rest arrives.
    assert sender.dropped in (0, 1)
    ticket = link.send(0, 0, encoded(1), sender.dropped)
    ray.wait([ticket], timeout=30)
    if link.fate(ticket) is Fate.LOST:
        ray.get(link.send(0, 0, encoded(1), sender.dropped + 1), timeout=30)
    assert ray.get(monitor.finish.remote(30))
    assert listener.samples[-1].step == 1


def test_a_job_without_a_monitor_trains_and_counts_what_nobody_heard(ray_address: str) -> None:
    link = MonitorLink("nobody")
    with pytest.raises(ValueError, match="monitor:nobody"):
        link.next_attempt(30)
    sender = telemetry(link)
    sender.announce(PLAN)
    sender.record(sample())
    sender.close(timeout_s=30)
    assert sender.dropped == 1
