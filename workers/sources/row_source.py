"""A source over files of rows: the order of the rows, their shares, and what becomes of bad ones.

What is a row, and how it is read, is up to a `RowGroups` and a `Decoder`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from workers.sources.bad_rows import BadRow, BadRowLog, NoGoodRows
from workers.sources.decoding import Decoder
from workers.sources.order import EpochOrder, Window
from workers.sources.schema import START, Consumed, HeldOut, Ints, Ragged, Samples, Schema
from workers.sources.split import by_epoch, holdout_shares, steps_left, train_shares


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
class _Rows:
    """Some rows, and their numbers in the whole data."""

    table: pa.Table
    numbers: Ints


class WindowReader:
    """Reads rows of an epoch and keeps the window that it read last, so memory grows with a window and not with a file.

    Where a batch straddles two windows, both are in memory.
    """

    def __init__(self, groups: RowGroups, rows: Ints, window: int, seed: int | None) -> None:
        """`rows` has the rows of each group that take part, its first ones. Without a `seed` they stay in order."""
        self._groups, self._rows, self._window, self._seed = groups, rows, window, seed
        self._first = np.cumsum(groups.rows) - groups.rows
        self._order = EpochOrder(rows, window, None if seed is None else (seed, 0))
        self._epoch = 0
        self._loaded: tuple[Window, _Rows] | None = None

    def read(self, epoch: int, places: slice) -> Iterator[_Rows]:
        """The rows at some places of an epoch, one part for each window."""
        if epoch != self._epoch and self._seed is not None:
            self._order = EpochOrder(self._rows, self._window, (self._seed, epoch))
        self._epoch = epoch
        start: int = places.start
        while start < places.stop:
            window = self._order.window_at(start)
            rows = self._load(window)
            part = slice(start - window.start, min(places.stop - window.start, window.rows))
            yield _Rows(rows.table.slice(part.start, part.stop - part.start), rows.numbers[part])
            start = window.start + part.stop

    def _load(self, window: Window) -> _Rows:
        if self._loaded is None or self._loaded[0] != window:
            self._loaded = window, self._read(window)
        return self._loaded[1]

    def _read(self, window: Window) -> _Rows:
        used = [(group, int(self._rows[group])) for group in window.groups]
        table = pa.concat_tables([self._groups.read(group).slice(0, rows) for group, rows in used])
        numbers = np.concatenate([self._first[group] + np.arange(rows) for group, rows in used])
        if window.key is None:
            return _Rows(table.combine_chunks(), numbers)
        order = window.order()
        places = pa.array(order)
        columns = [column.combine_chunks().take(places) for column in table.columns]
        return _Rows(pa.table(columns, names=table.column_names), numbers[order])


class RowSource:
    """See `Source`. The share `holdout` of the rows is held out, the last ones in the order of the files.

    With `shuffled`, an epoch is a permutation of the groups, and of the rows within each `window` of them. A rank reads
    the groups that its rows lie in, so groups with more rows than a step are read by every rank.
    """

    def __init__(
        self,
        groups: RowGroups,
        decoder: Decoder,
        *,
        holdout: float,
        window: int,
        shuffled: bool,
        bad_rows: BadRowLog,
    ) -> None:
        self._groups, self._decoder, self._bad_rows = groups, decoder, bad_rows
        self._window, self._shuffled = window, shuffled
        self._total = int(groups.rows.sum())
        self._trained = self._total - round(self._total * holdout)
        self.schema = decoder.schema

    @property
    def bad_rows(self) -> int:
        """See `BadRows`."""
        return self._bad_rows.count

    def steps(self, world_size: int, batch_size: int, epochs: int, start: Consumed = START) -> int:
        """What is left of `epochs` passes over the rows that are not held out, bad ones included."""
        return steps_left(epochs * self._trained, start.samples, world_size, batch_size)

    def train_batches(
        self, rank: int, world_size: int, batch_size: int, epochs: int, seed: int, start: Consumed = START
    ) -> Iterator[Samples]:
        """The good rows of each share. Raises `TooManyBadRows`, `NoGoodRows`, and `OSError` for files that are gone."""
        before = np.cumsum(self._groups.rows) - self._groups.rows
        rows = np.clip(self._trained - before, 0, self._groups.rows)
        reader = WindowReader(self._groups, rows, self._window, seed if self._shuffled else None)
        for share in train_shares(epochs * self._trained, start.samples, rank, world_size, batch_size):
            parts = [part for epoch, places in by_epoch(share, self._trained) for part in reader.read(epoch, places)]
            samples = self._decode(parts)
            if not len(samples):
                raise NoGoodRows(f"all {samples.taken} rows of a batch are bad. {self._bad_rows.named()}")
            yield samples

    def holdout(self, rank: int, world_size: int, batch_size: int) -> Iterator[HeldOut]:
        """The last rows. Bad ones are left out here, too: what fills their places up does not count."""
        reader = WindowReader(self._groups, self._groups.rows, 1, None)
        for places in holdout_shares(self._total - self._trained, rank, world_size, batch_size):
            rows = slice(self._trained + places.start, self._trained + places.stop)
            samples = self._decode(list(reader.read(0, rows)))
            yield HeldOut(_filled_up(samples, batch_size, self.schema), valid=len(samples))

    def _decode(self, parts: list[_Rows]) -> Samples:
        """The good rows."""
        if not parts:
            return _blank(0, self.schema)
        table, numbers = parts[0].table, parts[0].numbers
        if len(parts) > 1:
            table = pa.concat_tables([part.table for part in parts]).combine_chunks()
            numbers = np.concatenate([part.numbers for part in parts])
        decoded = self._decoder.decode(table)
        self._bad_rows.add(
            BadRow(int(numbers[place]), self._groups.where(int(numbers[place])), reason)
            for place, reason in decoded.bad.items()
        )
        samples = decoded.samples if not decoded.bad else _without(decoded.samples, list(decoded.bad))
        return replace(samples, rows=len(numbers))


def _without(samples: Samples, places: list[int]) -> Samples:
    """All samples but those at some places."""
    good = np.ones(len(samples), dtype=bool)
    good[places] = False
    return Samples(
        labels=samples.labels[good],
        ids={
            name: Ragged(ragged.values[np.repeat(good, ragged.lengths)], ragged.lengths[good])
            for name, ragged in samples.ids.items()
        },
        dense=samples.dense[good],
    )


def _blank(count: int, schema: Schema) -> Samples:
    """Samples of which nothing is known: all zero, and sequences empty."""
    lengths = np.zeros(count, dtype=np.int64)
    one = Ragged(np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64))
    none = Ragged(lengths[:0], lengths)
    ids = {feature.name: one if feature.max_length == 1 else none for feature in schema.features}
    return Samples(np.zeros(count, dtype=np.float32), ids, np.zeros((count, schema.dense), dtype=np.float32))


def _filled_up(samples: Samples, batch_size: int, schema: Schema) -> Samples:
    """`batch_size` samples, blank ones at the end."""
    blank = _blank(batch_size - len(samples), schema)
    return Samples(
        labels=np.concatenate([samples.labels, blank.labels]),
        ids={
            name: Ragged(
                np.concatenate([ragged.values, blank.ids[name].values]),
                np.concatenate([ragged.lengths, blank.ids[name].lengths]),
            )
            for name, ragged in samples.ids.items()
        },
        dense=np.concatenate([samples.dense, blank.dense]),
    )
