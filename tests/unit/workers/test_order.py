"""The order of an epoch: every row once, wherever reading begins."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.sources.order import EpochOrder, Window

GROUPS = st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(any)


def epoch(rows: list[int], window: int, key: tuple[int, int] | None) -> list[tuple[int, int]]:
    """(group, row in it) at each place, each found by itself."""
    order = EpochOrder(np.array(rows), window, key)
    return [_at(order.window_at(place), place, rows) for place in range(sum(rows))]


def _at(window: Window, place: int, rows: list[int]) -> tuple[int, int]:
    inside = [(group, row) for group in window.groups for row in range(rows[group])]
    assert len(inside) == window.rows
    return inside[window.order()[place - window.start]]


@given(rows=GROUPS, window=st.integers(1, 4))
def test_without_a_key_rows_stay_in_order(rows: list[int], window: int) -> None:
    assert epoch(rows, window, None) == [(group, row) for group, count in enumerate(rows) for row in range(count)]


@given(rows=GROUPS, window=st.integers(1, 4), seed=st.integers(0, 2**53))
def test_with_a_key_every_row_comes_once(rows: list[int], window: int, seed: int) -> None:
    found = epoch(rows, window, (seed, 1))
    assert sorted(found) == epoch(rows, 1, None)
    assert found == epoch(rows, window, (seed, 1))


@given(rows=GROUPS, window=st.integers(1, 4))
def test_no_more_groups_are_in_memory_than_said(rows: list[int], window: int) -> None:
    order = EpochOrder(np.array(rows), window, (0, 0))
    windows = dict.fromkeys(order.window_at(place) for place in range(sum(rows)))
    assert all(1 <= len(each.groups) <= window for each in windows)
    assert sum(len(each.groups) for each in windows) == np.count_nonzero(rows)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    rows = [8] * 8
    orders = [epoch(rows, 2, key) for key in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert all(one != two for index, one in enumerate(orders) for two in orders[:index])


def test_windows_of_an_epoch_have_orders_of_their_own() -> None:
    order = EpochOrder(np.array([50] * 4), 1, (0, 0))
    permutations = [order.window_at(place).order().tolist() for place in (0, 50, 100, 150)]
    assert len({tuple(each) for each in permutations}) == 4
