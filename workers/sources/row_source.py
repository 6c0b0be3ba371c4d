"""A source over files of rows: the order of the rows, their shares, and what becomes of bad ones.

What is a row, and how it is read, is up to a `RowGroups` and a `Decoder`.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from workers.sources.bad_rows import BadRow, BadRowLog, NoGoodRows
from workers.sources.decoding import Decoder
from workers.sources.schema import START, Consumed, HeldOut, Ragged, Samples, Schema
from workers.sources.split import by_epoch, holdout_shares, steps_left, train_shares
from workers.sources.windows import RowGroups, Rows, WindowReader


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
        stream = train_shares(epochs * self._trained, start.samples, rank, world_size, batch_size)
        shares = (list(by_epoch(share, self._trained)) for share in stream)
        with WindowReader(self._groups, rows, self._window, seed if self._shuffled else None) as reader:
            for parts in reader.read(shares):
                samples = self._decode(parts)
                if not len(samples):
                    raise NoGoodRows(f"all {samples.taken} rows of a batch are bad. {self._bad_rows.named()}")
                yield samples

    def holdout(self, rank: int, world_size: int, batch_size: int) -> Iterator[HeldOut]:
        """The last rows. Bad ones are left out here, too: what fills their places up does not count."""
        stream = holdout_shares(self._total - self._trained, rank, world_size, batch_size)
        shares = ([(0, slice(self._trained + each.start, self._trained + each.stop))] for each in stream)
        with WindowReader(self._groups, self._groups.rows, 1, None) as reader:
            for parts in reader.read(shares):
                samples = self._decode(parts)
                yield HeldOut(_filled_up(samples, batch_size, self.schema), valid=len(samples))

    def _decode(self, parts: list[Rows]) -> Samples:
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
