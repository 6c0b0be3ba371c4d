"""The feed knows which step each batch belongs to, also where steps are left out, and ends in order."""

from collections.abc import Iterator

import numpy as np
import pytest

from workers.sources.schema import Feature, Ragged, Samples, Schema, Table
from workers.training.batches import BatchFeed

SCHEMA = Schema(tables=(Table("t", 10),), features=(Feature("f", "t"),))


def samples(count: int, fails_after: bool = False) -> Iterator[Samples]:
    """Batches of two samples, whose ids are their number."""
    for number in range(count):
        ids = np.full(2, number, dtype=np.int64)
        yield Samples(np.zeros(2, dtype=np.float32), {"f": Ragged(ids, np.ones(2, dtype=np.int64))})
    if fails_after:
        raise OSError("disk gone")


def numbers(feed: BatchFeed) -> list[int]:
    return [int(batch.sparse_features.values()[0]) for batch in feed]


@pytest.mark.parametrize("skipped", [set(), {7}, {9}, {11}, {7, 8}, {7, 8, 9, 10, 11}], ids=str)
def test_steps_that_are_left_out_keep_their_numbers(skipped: set[int]) -> None:
    feed = BatchFeed(samples(5), SCHEMA, first=7, skipped=skipped, pinned=False)
    left = [step for step in range(7, 12) if step not in skipped]
    assert numbers(feed) == [step - 7 for step in left]
    assert [feed.trained() for _ in left] == left


def test_it_ends_where_it_is_told_to() -> None:
    feed = BatchFeed(samples(5), SCHEMA, first=0, pinned=False)
    next(feed)
    feed.end()
    assert numbers(feed) == []
    assert (feed.trained(), feed.failure) == (0, None)


def test_a_failure_is_an_end_and_is_kept() -> None:
    feed = BatchFeed(samples(2, fails_after=True), SCHEMA, first=0, pinned=False)
    assert numbers(feed) == [0, 1]
    assert feed.ended
    assert isinstance(feed.failure, OSError)


def test_waiting_is_counted_once() -> None:
    feed = BatchFeed(samples(2), SCHEMA, first=0, pinned=False)
    numbers(feed)
    assert feed.take_wait_ms() > 0
    assert feed.take_wait_ms() == 0
