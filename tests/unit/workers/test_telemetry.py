"""The rank's telemetry: it never waits, and what it gives up is counted."""

from dataclasses import dataclass, field

import pytest

from tests.unit.workers.samples import sample
from workers.reports import SAMPLES, JobPlan
from workers.telemetry.sender import Fate, Limits, Telemetry

LIMITS = Limits(waiting=6, batch=2, under_way=2)


@dataclass
class FakeLink:
    """A monitor whose answers the test decides: `fates` by ticket, PENDING until said otherwise; `gone` raises."""

    gone: bool = False
    default: Fate = Fate.PENDING
    fates: dict[int, Fate] = field(default_factory=dict)
    sent: list[tuple[list[int], int]] = field(default_factory=list)

    def send(self, rank: int, attempt: int, samples: bytes, dropped: int) -> int:
        if self.gone:
            raise ValueError("no actor of that name")
        self.sent.append(([each.step for each in SAMPLES.validate_json(samples)], dropped))
        return len(self.sent) - 1

    def fate(self, ticket: int) -> Fate:
        return self.fates.get(ticket, self.default)

    def announce(self, plan: JobPlan) -> None:
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
    assert link.sent == [([0, 1], 0), ([2, 3], 0), ([4], 0)]
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
    assert link.sent[2] == ([4, 5], 10)


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
    telemetry.announce(JobPlan(steps=1, world_size=1, prioritized={}, not_prioritized={}))
    record(telemetry, range(4))
    assert not telemetry.pump()
    assert telemetry.dropped == 4


def test_closing_sends_the_rest_and_the_final_count_of_what_was_dropped() -> None:
    link = FakeLink(default=Fate.ARRIVED, fates={0: Fate.LOST})
    telemetry = Telemetry(link, 0, 0, Limits(waiting=100, batch=2, under_way=1, interval_s=60))
    telemetry.start()
    record(telemetry, range(5))
    telemetry.close(timeout_s=30)
    assert link.sent == [([0, 1], 0), ([2, 3], 2), ([4], 2)]
    assert telemetry.dropped == 2


def test_the_last_loss_is_told_too() -> None:
    link = FakeLink(default=Fate.ARRIVED, fates={0: Fate.LOST})
    telemetry = Telemetry(link, 0, 0, LIMITS)
    telemetry.start()
    record(telemetry, range(2))
    telemetry.close(timeout_s=30)
    assert link.sent == [([0, 1], 0), ([], 2)]


@pytest.mark.parametrize("timeout_s", [0.0, 0.05])
def test_closing_does_not_wait_for_a_monitor_that_never_answers(timeout_s: float) -> None:
    telemetry = Telemetry(FakeLink(), 0, 0, LIMITS)
    telemetry.start()
    record(telemetry, range(3))
    telemetry.close(timeout_s)
