"""The rank's telemetry: it never waits, and what it gives up is counted."""

import threading
import time
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from tests.unit.workers.samples import sample
from workers.reports import SAMPLES, JobPlan
from workers.telemetry.sender import Fate, Limits, SampleBatch, Telemetry

LIMITS = Limits(waiting=6, batch=2, under_way=2)
PLAN = JobPlan(steps=1, world_size=1, prioritized={}, not_prioritized={})


@dataclass
class FakeLink:
    """A monitor whose answers the test decides: `fates` by ticket, else `default`; `gone` raises.

    `sent` holds the steps of each batch, and how many samples were recorded up to it.
    """

    gone: bool = False
    default: Fate = Fate.PENDING
    incarnation: str | None = None
    fates: dict[int, Fate] = field(default_factory=dict)
    sent: list[tuple[list[int], int]] = field(default_factory=list)
    batches: list[SampleBatch] = field(default_factory=list)
    plans: list[JobPlan] = field(default_factory=list)
    plan_fate: Fate = Fate.ARRIVED
    ahead_s: float = 0.0
    stopped: bool = False
    asked_by: set[str] = field(default_factory=set)

    def send(self, batch: SampleBatch) -> int:
        self._reach()
        self.batches.append(batch)
        self.sent.append(([each.step for each in SAMPLES.validate_json(batch.samples)], batch.recorded))
        return len(self.sent) - 1

    def fate(self, ticket: int) -> Fate:
        return self.plan_fate if ticket < 0 else self.fates.get(ticket, self.default)

    def announce(self, plan: JobPlan) -> int:
        self._reach()
        self.plans.append(plan)
        return -1

    def read_clock(self, timeout_s: float) -> float:
        self._reach()
        self.asked_by.add(threading.current_thread().name)
        return time.time() + self.ahead_s

    def stops(self, timeout_s: float) -> bool:
        self._reach()
        return self.stopped

    def _reach(self) -> None:
        if self.gone:
            raise ValueError("no actor of that name")


def record(telemetry: Telemetry, steps: range) -> None:
    for step in steps:
        telemetry.record(sample(step))


def test_samples_travel_in_batches_and_in_order() -> None:
    link = FakeLink(default=Fate.ARRIVED)
    telemetry = Telemetry(link, 0, 0, LIMITS)
    record(telemetry, range(5))
    while telemetry.pump():
        pass
    assert link.sent == [([0, 1], 2), ([2, 3], 4), ([4], 5)]
    assert telemetry.dropped == 0


def test_a_slow_monitor_has_few_batches_under_way_and_costs_samples_that_are_counted() -> None:
    link = FakeLink()
    telemetry = Telemetry(link, 0, 0, LIMITS)
    record(telemetry, range(4))
    telemetry.pump()
    record(telemetry, range(4, 20))
    assert telemetry.pump()
    assert [steps for steps, _ in link.sent] == [[0, 1], [2, 3]]
    assert telemetry.dropped == 20 - 4 - LIMITS.waiting
    link.default = Fate.ARRIVED
    telemetry.pump()
    assert link.sent[2] == ([4, 5], 6 + 10)


def test_a_batch_that_was_lost_is_counted() -> None:
    link = FakeLink(default=Fate.ARRIVED, fates={0: Fate.LOST})
    telemetry = Telemetry(link, 0, 0, LIMITS)
    record(telemetry, range(4))
    while telemetry.pump():
        pass
    assert telemetry.dropped == 2


def test_a_monitor_that_is_gone_costs_samples_and_nothing_else() -> None:
    link = FakeLink(gone=True)
    telemetry = Telemetry(link, 0, 0, LIMITS)
    telemetry.announce(PLAN)
    record(telemetry, range(4))
    telemetry.beat()
    assert not telemetry.pump()
    assert telemetry.dropped == 4


def test_closing_sends_the_rest_and_the_final_count_of_what_was_dropped() -> None:
    link = FakeLink(default=Fate.ARRIVED, fates={0: Fate.LOST})
    telemetry = Telemetry(link, 0, 0, Limits(waiting=100, batch=2, under_way=1, interval_s=60))
    telemetry.start()
    record(telemetry, range(5))
    telemetry.close(timeout_s=30)
    assert link.sent == [([0, 1], 2), ([2, 3], 4), ([4], 5)]
    assert telemetry.dropped == 2


def test_the_last_loss_is_told_too() -> None:
    link = FakeLink(default=Fate.ARRIVED, fates={0: Fate.LOST})
    telemetry = Telemetry(link, 0, 0, LIMITS)
    telemetry.start()
    record(telemetry, range(2))
    telemetry.close(timeout_s=30)
    assert link.sent == [([0, 1], 2), ([], 2)]


@pytest.mark.parametrize("timeout_s", [0.0, 0.05])
def test_closing_does_not_wait_for_a_monitor_that_never_answers(timeout_s: float) -> None:
    telemetry = Telemetry(FakeLink(), 0, 0, LIMITS)
    telemetry.start()
    record(telemetry, range(3))
    telemetry.close(timeout_s)


def test_the_plan_is_sent_once_before_the_samples_and_with_its_attempt() -> None:
    link = FakeLink(default=Fate.ARRIVED)
    telemetry = Telemetry(link, 0, 3, LIMITS)
    telemetry.announce(PLAN)
    record(telemetry, range(2))
    assert link.plans == [], "the training thread sends nothing itself"
    for _ in range(3):
        telemetry.beat()
    assert link.plans == [PLAN.model_copy(update={"attempt": 3})]
    assert link.sent == [([0, 1], 2)]


def test_a_plan_that_got_lost_is_sent_again() -> None:
    link = FakeLink(plan_fate=Fate.LOST)
    telemetry = Telemetry(link, 0, 0, LIMITS)
    telemetry.announce(PLAN)
    for _ in range(3):
        telemetry.beat()
    assert len(link.plans) == 3
    link.plan_fate = Fate.ARRIVED
    for _ in range(3):
        telemetry.beat()
    assert len(link.plans) == 4


def test_every_monitor_that_ray_starts_is_told_the_plan() -> None:
    link = FakeLink(default=Fate.ARRIVED, incarnation="one")
    telemetry = Telemetry(link, 0, 0, LIMITS)
    telemetry.announce(PLAN)
    telemetry.beat()
    telemetry.beat()
    link.incarnation = "two"
    for _ in range(3):
        telemetry.beat()
    assert link.plans == [PLAN, PLAN]


def test_a_plan_that_cannot_be_sent_does_not_hold_up_the_end() -> None:
    link = FakeLink(gone=True)
    telemetry = Telemetry(link, 0, 0, LIMITS)
    telemetry.announce(PLAN)
    with capture_logs():
        telemetry.start()
        telemetry.close(timeout_s=30)
    assert not telemetry._thread.is_alive()


def test_it_asks_on_every_beat_whether_the_job_is_to_stop() -> None:
    link = FakeLink(default=Fate.ARRIVED)
    telemetry = Telemetry(link, 0, 0, LIMITS)
    telemetry.beat()
    assert not telemetry.told_to_stop
    link.stopped = True
    assert not telemetry.told_to_stop, "the training thread asks nobody"
    telemetry.beat()
    assert telemetry.told_to_stop
    link.stopped = False
    telemetry.beat()
    assert telemetry.told_to_stop, "another monitor may not know of it"


def test_a_monitor_that_is_gone_stops_nobody() -> None:
    link = FakeLink(gone=True, stopped=True)
    telemetry = Telemetry(link, 0, 0, LIMITS)
    with capture_logs():
        telemetry.beat()
    assert not telemetry.told_to_stop
    link.gone = False
    telemetry.beat()
    assert telemetry.told_to_stop


def test_batches_say_how_far_the_monitors_clock_is() -> None:
    link = FakeLink(default=Fate.ARRIVED, ahead_s=100.0)
    telemetry = Telemetry(link, 0, 0, LIMITS)
    record(telemetry, range(1))
    telemetry.beat()
    (batch,) = link.batches
    assert batch.clock is not None
    assert abs(batch.clock.offset_ms - 100_000) <= batch.clock.uncertainty_ms + 1.0


def test_the_clock_of_another_monitor_is_measured_at_once() -> None:
    link = FakeLink(default=Fate.ARRIVED, incarnation="one")
    telemetry = Telemetry(link, 0, 0, LIMITS)
    telemetry.beat()
    link.incarnation, link.ahead_s = "two", -50.0
    record(telemetry, range(1))
    telemetry.beat()
    assert link.batches[0].clock is not None
    assert link.batches[0].clock.offset_ms == pytest.approx(-50_000, abs=1000)


def test_only_the_telemetry_thread_asks_for_the_clock() -> None:
    link = FakeLink(default=Fate.ARRIVED)
    telemetry = Telemetry(link, 0, 0, LIMITS)
    telemetry.start()
    telemetry.announce(PLAN)
    record(telemetry, range(3))
    telemetry.close(timeout_s=30)
    assert link.asked_by == {"telemetry"}
    assert link.sent[0][0] == [0, 1]
