"""Beats of the wall clock: ranks that started at different moments do their work in the same step."""

from dataclasses import dataclass

import pytest

from workers.telemetry.beat import Beat


@dataclass
class Clock:
    """A clock that the test sets."""

    now_s: float

    def __call__(self) -> float:
        return self.now_s


def test_two_that_began_at_different_moments_beat_together() -> None:
    clock = Clock(100.1)
    one = Beat(0.5, clock_s=clock)
    clock.now_s = 100.4
    other = Beat(0.5, clock_s=clock)
    seen = []
    for tenths in range(4, 17):
        clock.now_s = 100 + tenths / 10
        seen.append((one.passed(), other.passed()))
    assert all(first == second for first, second in seen)
    assert [index for index, (first, _) in enumerate(seen) if first] == [1, 6, 11]


def test_a_beat_is_told_once_however_late_it_is_asked_for() -> None:
    clock = Clock(7.0)
    beat = Beat(1.0, clock_s=clock)
    assert not beat.passed()
    clock.now_s = 12.5
    assert beat.passed()
    assert not beat.passed()


@pytest.mark.parametrize(("now_s", "wait_s"), [(10.0, 0.25), (10.2, 0.05), (10.25, 1.0), (10.5, 0.75)])
def test_the_wait_ends_with_the_next_beat(now_s: float, wait_s: float) -> None:
    assert Beat(1.0, after_s=0.25, clock_s=Clock(now_s)).wait_s() == pytest.approx(wait_s)
