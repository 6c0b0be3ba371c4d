"""A rank's estimate of the monitor's clock, on clocks and a network that the test sets."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from workers.telemetry.clock import ClockOffset, MonitorClock


@dataclass
class World:
    """A rank whose clock is `offset_s` behind the monitor's, and the ways there and back of each exchange, in seconds.

    `drift` is how much faster the monitor's clock runs. A way of None is a monitor that does not answer.
    """

    offset_s: float = 0.0
    drift: float = 0.0
    ways: list[tuple[float, float] | None] = field(default_factory=list)
    passed_s: float = 0.0
    asked: int = 0

    def elapsed_s(self) -> float:
        return self.passed_s

    def wall_s(self) -> float:
        return 1_000_000.0 + self.passed_s

    def true_ms(self) -> float:
        return 1e3 * (self.offset_s + self.drift * self.passed_s)

    def read(self, timeout_s: float) -> float:
        self.asked += 1
        way = self.ways.pop(0) if self.ways else (0.001, 0.001)
        if way is None:
            self.passed_s += timeout_s
            raise TimeoutError("no answer")
        self.passed_s += way[0]
        there_s = self.wall_s() + self.true_ms() / 1e3
        self.passed_s += way[1]
        return there_s

    def clock(self, **settings: float) -> MonitorClock:
        return MonitorClock(self.read, wall_s=self.wall_s, elapsed_s=self.elapsed_s, **settings)


def measured(clock: MonitorClock) -> ClockOffset:
    clock.refresh()
    assert clock.offset is not None
    return clock.offset


@pytest.mark.parametrize("offset_s", [0.0, 3.25, -7200.0])
def test_equal_ways_give_the_offset_itself(offset_s: float) -> None:
    found = measured(World(offset_s).clock())
    assert found.offset_ms == pytest.approx(1e3 * offset_s, abs=1e-3)
    assert found.uncertainty_ms == pytest.approx(1.0)


@pytest.mark.parametrize("way", [(0.08, 0.02), (0.0, 0.1), (0.1, 0.0)])
def test_unequal_ways_are_off_by_half_the_round_trip_at_most(way: tuple[float, float]) -> None:
    world = World(offset_s=0.5, ways=[way] * 8)
    found = measured(world.clock())
    assert found.uncertainty_ms == pytest.approx(50.0)
    assert abs(found.offset_ms - 500.0) <= found.uncertainty_ms + 1e-3
    assert found.offset_ms - 500.0 == pytest.approx(1e3 * (way[0] - way[1]) / 2, abs=1e-3)


def test_the_exchange_with_the_shortest_round_trip_counts() -> None:
    ways: Iterable[tuple[float, float]] = [(0.5, 0.1), (0.004, 0.002), (0.1, 0.1)]
    found = measured(World(offset_s=1.0, ways=list(ways)).clock(tries=3))
    assert found.uncertainty_ms == pytest.approx(3.0)
    assert found.offset_ms == pytest.approx(1001.0, abs=1e-3)


def test_a_clock_that_drifts_is_measured_again_when_it_is_due() -> None:
    world = World(offset_s=0.1, drift=50e-6)
    clock = world.clock(every_s=60.0)
    first = measured(clock)
    asked = world.asked
    world.passed_s += 59.0
    assert measured(clock) == first
    assert world.asked == asked
    world.passed_s += 1.5
    assert measured(clock) != first
    assert measured(clock).offset_ms == pytest.approx(world.true_ms(), abs=0.01)
    assert abs(first.offset_ms - world.true_ms()) == pytest.approx(3.0, abs=0.1)


def test_while_the_monitor_is_away_the_last_estimate_stays_and_it_is_said_once() -> None:
    world = World(offset_s=0.25)
    clock = world.clock(every_s=60.0, retry_s=10.0)
    first = measured(clock)
    world.ways = [None, None]
    world.passed_s += 61.0
    with capture_logs() as logs:
        assert measured(clock) == first
        world.passed_s += 11.0
        assert measured(clock) == first
    assert [(entry["log_level"], entry["offset"]) for entry in logs] == [("warning", "250.000 ms stays")]
    world.offset_s = 0.5
    world.passed_s += 11.0
    assert measured(clock).offset_ms == pytest.approx(500.0, abs=1e-3)


def test_without_any_answer_there_is_no_offset() -> None:
    world = World(ways=[None])
    clock = world.clock()
    with capture_logs() as logs:
        clock.refresh()
    assert clock.offset is None
    assert [entry["offset"] for entry in logs] == ["none is known"]
    assert world.passed_s == 3.0, "it waits for one answer, not for as many as it wanted"
    assert measured(clock).uncertainty_ms == pytest.approx(1.0), "and asks again at the next opportunity"


def test_an_exchange_that_fails_after_others_does_not_spoil_them() -> None:
    world = World(offset_s=0.5, ways=[(0.001, 0.001), None])
    with capture_logs() as logs:
        assert measured(world.clock()).offset_ms == pytest.approx(500.0, abs=1e-3)
    assert logs == []


def test_another_monitor_is_measured_at_once() -> None:
    world = World(offset_s=0.5)
    clock = world.clock()
    measured(clock)
    world.offset_s = -0.5
    clock.expire()
    assert measured(clock).offset_ms == pytest.approx(-500.0, abs=1e-3)
