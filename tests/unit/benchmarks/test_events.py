"""Who counts as having seen every event."""

import pytest

from benchmarks.events.followers import complete


@pytest.mark.parametrize(
    ("seen", "whole", "events"),
    [
        ([[1, 5, 9], [1, 5, 9]], 2, 2),
        ([[1, 5, 9], [5, 9]], 2, 1),
        ([[1, 5, 9], [1, 9], [1, 5, 9]], 2, 2),
        ([[1, 5, 9], [1, 5], [1, 5, 9]], 2, 2),
        ([[1, 5, 5, 9], [1, 5, 9]], 1, 3),
        ([[1, 5], []], 1, 1),
        ([], 0, 0),
    ],
)
def test_complete(seen: list[list[int]], whole: int, events: int) -> None:
    assert complete(seen) == (whole, events)
