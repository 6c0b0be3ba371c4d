"""When a message that was not taken is sent again."""

from datetime import timedelta

from service.webhooks.backoff import MOST_ATTEMPTS, SCHEDULE, pause_after


def test_pauses_are_spread_out() -> None:
    assert pause_after(1, lambda: 0.0) == timedelta(seconds=4)
    assert pause_after(1, lambda: 0.5) == timedelta(seconds=5)
    assert pause_after(1, lambda: 1.0) == timedelta(seconds=6)
    assert pause_after(MOST_ATTEMPTS, lambda: 0.5) is None
    longest = sum((pause_after(each, lambda: 1.0) or timedelta() for each in range(1, MOST_ATTEMPTS)), timedelta())
    assert longest < SCHEDULE
