"""The outbox: bounded, and every sample that gets lost is counted, also by the outbox of a monitor that comes after."""

from tests.unit.workers.samples import sample
from workers.reports import ReportBatch, StepSample
from workers.telemetry.outbox import Outbox


def samples(*steps: int) -> list[StepSample]:
    return [sample(step) for step in steps]


def taken(outbox: Outbox, limit: int = 100) -> ReportBatch:
    batch = outbox.take(limit)
    assert batch is not None
    return batch


def test_beyond_its_capacity_the_oldest_are_given_up_and_counted() -> None:
    outbox = Outbox(capacity=3)
    outbox.add_samples(0, 0, samples(0, 1, 2, 3, 4), 5)
    batch = taken(outbox)
    assert [each.step for each in batch.samples] == [2, 3, 4]
    assert batch.dropped == 2


def test_what_ranks_recorded_and_did_not_send_adds_up_and_is_told_even_alone() -> None:
    outbox = Outbox()
    outbox.add_samples(0, 0, [], 3)
    outbox.add_samples(1, 0, [], 2)
    outbox.add_samples(0, 0, [], 4)
    outbox.add_samples(0, 1, [], 1)
    assert taken(outbox).dropped == 7
    assert outbox.take(10) is None


def test_a_batch_that_arrived_although_its_sender_heard_nothing_is_not_lost() -> None:
    outbox = Outbox()
    outbox.add_samples(0, 0, samples(0, 1), 2)
    outbox.add_samples(0, 0, samples(2), 4)
    assert outbox.dropped == 1


def test_the_next_monitor_counts_what_the_last_one_had_not_delivered() -> None:
    lost, after = Outbox(), Outbox(follows=True)
    lost.add_samples(0, 0, samples(0, 1, 2), 3)
    taken(lost, 2)
    accounts = lost.accounts()
    taken(lost, 2)
    assert (lost.accounts() == accounts, lost.dropped) == (False, 0), "what is taken next says that this was delivered"
    after.recall(accounts, lost.given_up)
    assert after.dropped == 3, "of all that was acknowledged nothing was surely delivered"
    after.add_samples(0, 0, samples(3), 4)
    assert after.dropped == 3


def test_the_next_monitor_counts_what_was_acknowledged_after_the_last_word() -> None:
    lost, after = Outbox(), Outbox(follows=True)
    lost.add_samples(0, 0, samples(0), 1)
    taken(lost)
    assert lost.take(100) is None
    memory = lost.accounts(), lost.given_up
    lost.add_samples(0, 0, samples(1, 2), 3)
    after.recall(*memory)
    assert after.dropped == 0
    after.add_samples(0, 0, samples(3), 4)
    assert after.dropped == 2


def test_what_was_given_up_before_stays_counted_and_is_not_counted_twice() -> None:
    lost, after = Outbox(capacity=1), Outbox(follows=True)
    lost.add_samples(0, 0, samples(0, 1), 4)
    taken(lost)
    lost.take(1)
    assert lost.dropped == 3
    after.recall(lost.accounts(), lost.given_up)
    assert after.dropped == 3
    assert taken(after).dropped == 3


def test_the_next_monitor_takes_nothing_for_lost_before_it_knows_what_was_delivered() -> None:
    lost, after = Outbox(), Outbox(follows=True)
    lost.add_samples(0, 0, samples(0, 1), 2)
    taken(lost)
    lost.take(1)
    after.add_samples(0, 0, samples(2), 3)
    assert taken(after).dropped == 0
    after.recall(lost.accounts(), lost.given_up)
    assert after.dropped == 0
