"""The arithmetic of exposed and hidden communication, on moments written by hand."""

import pytest

from pipeline.report import CollectiveName, CollectiveReport, Partition, StepReport
from pipeline.timeline import KEPT, Flight, StepFacts, Timeline, intersect, union

FACTS = StepFacts(step=0, samples=8, ids=10, overlapped_ids=4)


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def at(self, moment: float) -> float:
        self.now = moment
        return moment


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timeline(clock: Clock) -> Timeline[float]:
    return Timeline(rank=1, now=lambda: clock.now, resolve=lambda moment: moment, wait=lambda _: None)


def fly(
    timeline: Timeline[float], clock: Clock, name: CollectiveName, begin: float, end: float | None, wait: float = 0.0
) -> Flight[float]:
    """A collective in flight from `begin` to `end`, for whose last `wait` ms the compute lane waited."""
    clock.at(begin)
    flight = timeline.fly(name, None, 100, 200)
    flight.end = end
    if wait and end is not None:
        flight.waits.append((end - wait, end))
    return flight


def end_step(timeline: Timeline[float], clock: Clock, moment: float) -> StepReport:
    clock.at(moment)
    timeline.end_step(FACTS)
    [report] = timeline.unread()
    return report


def test_overlapping_collectives_count_once(timeline: Timeline[float], clock: Clock) -> None:
    timeline.begin_step()
    fly(timeline, clock, CollectiveName.EMBEDDING, 10, 40, wait=5)
    fly(timeline, clock, CollectiveName.GRADIENT, 30, 60, wait=10)
    timeline.computed(0, 100)
    report = end_step(timeline, clock, 100)
    assert (report.step_ms, report.comm_ms, report.exposed_ms, report.hidden_ms) == (100, 50, 15, 35)
    assert report.comm_overlap == pytest.approx(0.7)
    assert report.compute_ms == 85
    assert report.id_overlap == 0.4
    assert report.rank == 1
    assert [(each.name, each.ms, each.exposed_ms) for each in report.collectives] == [
        (CollectiveName.EMBEDDING, 30, 5),
        (CollectiveName.GRADIENT, 30, 10),
    ]


def test_a_collective_counts_in_each_step_with_its_part(timeline: Timeline[float], clock: Clock) -> None:
    timeline.begin_step()
    flight = fly(timeline, clock, CollectiveName.GRADIENT, 80, None)
    first = end_step(timeline, clock, 100)
    assert (first.comm_ms, first.exposed_ms) == (20, 0)
    clock.at(110)
    timeline.begin_step()
    flight.end = 130
    flight.waits.append((125, 130))
    second = end_step(timeline, clock, 210)
    assert (second.comm_ms, second.exposed_ms) == (20, 5)
    assert second.collectives == (
        CollectiveReport(
            name=CollectiveName.GRADIENT, partition=None, bytes_sent=0, bytes_received=0, ms=20, exposed_ms=5
        ),
    )
    clock.at(220)
    timeline.begin_step()
    assert end_step(timeline, clock, 300).comm_ms == 0


def test_waiting_for_a_peer_that_is_late_is_not_hidden(timeline: Timeline[float], clock: Clock) -> None:
    timeline.begin_step()
    fly(timeline, clock, CollectiveName.EMBEDDING, 0, 50, wait=50)
    report = end_step(timeline, clock, 50)
    assert (report.hidden_ms, report.comm_overlap) == (0, 0)


def test_without_communication_there_is_no_ratio(timeline: Timeline[float], clock: Clock) -> None:
    timeline.begin_step()
    assert end_step(timeline, clock, 10).comm_overlap is None


def test_each_step_is_reported_once_and_in_order_when_its_moments_are_known(clock: Clock) -> None:
    reached = [0.0]
    timeline: Timeline[float] = Timeline(
        0, lambda: clock.now, lambda moment: moment if moment <= reached[0] else None, lambda end: reached.append(end)
    )
    timeline.begin_step()
    for step in range(3):
        clock.at(10.0 * (step + 1))
        timeline.end_step(StepFacts(step, 8, 10, None))
        timeline.begin_step()
    assert (timeline.last(), timeline.unread()) == (None, [])
    reached[0] = 20
    assert [report.step for report in timeline.unread()] == [0, 1]
    assert timeline.unread() == []
    timeline.finish()
    assert reached.pop() == 30
    reached[0] = 30
    assert [report.step for report in timeline.unread()] == [2]


def test_reports_that_nobody_reads_do_not_pile_up(timeline: Timeline[float], clock: Clock) -> None:
    for step in range(3 * KEPT):
        timeline.begin_step()
        clock.at(float(step + 1))
        timeline.end_step(StepFacts(step, 1, 1, None))
    unread = timeline.unread()
    assert len(unread) == KEPT
    assert unread[-1].step == 3 * KEPT - 1


def test_a_schedule_that_looks_for_no_overlap_says_so(timeline: Timeline[float], clock: Clock) -> None:
    timeline.begin_step()
    clock.at(10)
    timeline.end_step(StepFacts(step=3, samples=8, ids=10, overlapped_ids=None))
    [report] = timeline.unread()
    assert (report.step, report.overlapped_ids, report.id_overlap) == (3, None, None)


def test_interval_arithmetic() -> None:
    assert union([(3, 5), (0, 1), (4, 8), (8, 9), (2, 2)]) == [(0, 1), (3, 9)]
    assert intersect([(0, 4), (6, 9)], [(3, 7), (8, 20)]) == [(3, 4), (6, 7), (8, 9)]


def test_partitions_are_kept_apart(timeline: Timeline[float], clock: Clock) -> None:
    timeline.begin_step()
    for partition in (Partition.NOL, Partition.OL):
        timeline.fly(CollectiveName.EMBEDDING, partition, 1, 2).end = 5
    assert [each.partition for each in end_step(timeline, clock, 10).collectives] == [Partition.OL, Partition.NOL]
