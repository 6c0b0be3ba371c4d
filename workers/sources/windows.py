"""Reads the windows of an epoch in their order, each while the one before it is trained."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import pyarrow as pa

from workers.sources.order import EpochOrder, Window
from workers.sources.schema import Ints

Share = Sequence[tuple[int, slice]]
"""What a rank trains in one step: epochs, and the places in them."""

# So many steps are looked at for the next window. A window of more steps is found out about in time all the same.
_FORESIGHT = 256


class RowGroups(Protocol):
    """The rows of all files, one after the other, in groups that are read as a whole. Any thread may read."""

    @property
    def rows(self) -> Ints:
        """Rows of each group."""
        ...

    def read(self, group: int) -> pa.Table:
        """The rows of a group. Raises `OSError`, which names the file, if it cannot be read any more."""
        ...

    def where(self, row: int) -> str:
        """Row number `row` of the whole data as people look for it: file, and place in it."""
        ...


@dataclass(frozen=True)
class Rows:
    """Some rows, and their numbers in the whole data."""

    table: pa.Table
    numbers: Ints


@dataclass(frozen=True)
class _Piece:
    """Some places of a window, counted from its begin."""

    window: Window
    places: slice


class WindowReader:
    """Reads the rows of a rank's shares, in their order.

    It keeps the window that it read last, and a thread reads the next one that is needed meanwhile. So memory grows
    with windows, not with files: two are there at a time, and a batch that straddles them needs no third. Leaving the
    context ends the thread.
    """

    def __init__(self, groups: RowGroups, rows: Ints, window: int, seed: int | None) -> None:
        """`rows` has the rows of each group that take part, its first ones. Without a `seed` they stay in order."""
        self._groups, self._rows, self._window, self._seed = groups, rows, window, seed
        self._first = np.cumsum(groups.rows) - groups.rows
        self._epoch, self._order = 0, self._order_of(0)
        self._loaded: tuple[Window, Rows] | None = None
        self._next: tuple[Window, Future[Rows]] | None = None
        self._thread = ThreadPoolExecutor(1, "next-window")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A read that is under way is not waited for: its storage may hang.
        self._thread.shutdown(wait=False, cancel_futures=True)

    def read(self, shares: Iterator[Share]) -> Iterator[list[Rows]]:
        """The rows of each share, a part for each window. Raises `OSError` for files that are gone."""
        upcoming = deque(map(self._pieces, islice(shares, _FORESIGHT)))
        while upcoming:
            share = upcoming.popleft()
            upcoming.extend(map(self._pieces, islice(shares, 1)))
            parts = [self._cut(piece, chain(share[place + 1 :], *upcoming)) for place, piece in enumerate(share)]
            if self._loaded is not None and self._next is None and upcoming:
                self._read_ahead(upcoming[-1])
            yield parts

    def _pieces(self, share: Share) -> list[_Piece]:
        found = []
        for epoch, places in share:
            if epoch != self._epoch:
                self._epoch, self._order = epoch, self._order_of(epoch)
            start: int = places.start
            while start < places.stop:
                window = self._order.window_at(start)
                inside = slice(start - window.start, min(places.stop - window.start, window.rows))
                found.append(_Piece(window, inside))
                start = window.start + inside.stop
        return found

    def _order_of(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._rows, self._window, None if self._seed is None else (self._seed, epoch))

    def _cut(self, piece: _Piece, upcoming: Iterable[_Piece]) -> Rows:
        if self._loaded is None or self._loaded[0] != piece.window:
            following, self._next = self._next, None
            known = following is not None and following[0] == piece.window
            self._loaded = piece.window, following[1].result() if following and known else self._read(piece.window)
            self._read_ahead(upcoming)
        rows, places = self._loaded[1], piece.places
        return Rows(rows.table.slice(places.start, places.stop - places.start), rows.numbers[places])

    def _read_ahead(self, upcoming: Iterable[_Piece]) -> None:
        """Begin with the next window that is needed, if it is in sight."""
        assert self._loaded is not None
        window = next((piece.window for piece in upcoming if piece.window != self._loaded[0]), None)
        if window is not None:
            self._next = window, self._thread.submit(self._read, window)

    def _read(self, window: Window) -> Rows:
        used = [(group, int(self._rows[group])) for group in window.groups]
        table = pa.concat_tables([self._groups.read(group).slice(0, rows) for group, rows in used])
        numbers = np.concatenate([self._first[group] + np.arange(rows) for group, rows in used])
        if window.key is None:
            return Rows(table.combine_chunks(), numbers)
        order = window.order()
        places = pa.array(order)
        columns = [column.combine_chunks().take(places) for column in table.columns]
        return Rows(pa.table(columns, names=table.column_names), numbers[order])
