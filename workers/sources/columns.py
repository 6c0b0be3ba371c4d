"""From the columns of a table to samples, all rows of a batch at once; only bad rows are looked at one by one."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workers.job import ColumnsSpec
from workers.sources.decoding import Decoded, Mask, bytes_of, column_of, note
from workers.sources.hashing import MISSING_ROW, hash_numbers, hash_texts, to_rows
from workers.sources.schema import Feature, Floats, Ints, Ragged, Samples, Schema
from workers.sources.tables import Lookup, tables_of


class Columns:
    """See `Decoder`. A missing dense value is 0, a missing id row 0, a missing sequence empty.

    A row is bad if its label is not 0 or 1, a dense value is not finite in 32 bits, or an id is outside of its table.
    """

    def __init__(self, columns: ColumnsSpec, found: Mapping[str, Lookup], max_length: int) -> None:
        self._columns, self._lookups, self._max_length = columns, found, max_length
        longest = dict.fromkeys(columns.ids, 1) | dict.fromkeys(columns.sequences, max_length)
        self.schema = Schema(
            tables=tables_of(found),
            features=tuple(Feature(name, found[name].table.name, longest[name]) for name in columns.features),
            dense=len(columns.dense),
        )

    def decode(self, rows: pa.Table) -> Decoded:
        """Samples of columns that have the types of `column_types`."""
        bad: dict[int, str] = {}
        labels = self._labels(column_of(rows, self._columns.label), bad)
        dense = np.zeros((len(labels), len(self._columns.dense)), dtype=np.float32)
        for index, name in enumerate(self._columns.dense):
            dense[:, index] = _numbers(column_of(rows, name), name, bad)
        ids = {name: self._ids(column_of(rows, name), name, bad) for name in self._columns.ids}
        ids |= {name: self._sequence(column_of(rows, name), name, bad) for name in self._columns.sequences}
        return Decoded(Samples(labels, ids, dense), bad)

    def _labels(self, column: pa.Array, bad: dict[int, str]) -> Floats:
        found = column.to_numpy(zero_copy_only=False)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        name = self._columns.label
        note(bad, missing, lambda row: f"label {name!r} is missing")
        note(bad, (found != 0) & (found != 1), lambda row: f"label {name!r} is {found[row]:g}, not 0 or 1")
        labels: Floats = (found == 1).astype(np.float32)
        return labels

    def _ids(self, column: pa.Array, name: str, bad: dict[int, str]) -> Ragged:
        rows, outside = _table_rows(column, self._lookups[name])
        note(bad, outside, lambda row: self._outside(name, column[row]))
        return Ragged(rows, np.ones(len(rows), dtype=np.int64))

    def _sequence(self, column: pa.Array, name: str, bad: dict[int, str]) -> Ragged:
        """The last ids of each list."""
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        ends = column.offsets.to_numpy()[:-1] + lengths
        kept = np.minimum(lengths, self._max_length)
        totals = np.cumsum(kept)
        places = np.arange(totals[-1]) + np.repeat(ends - totals, kept)
        values = column.values.take(pa.array(places))
        rows, outside = _table_rows(values, self._lookups[name])
        if outside.any():
            row_of = np.repeat(np.arange(len(kept)), kept)
            for place in np.flatnonzero(outside).tolist():
                bad.setdefault(int(row_of[place]), self._outside(name, values[place]))
        return Ragged(rows, kept)

    def _outside(self, name: str, found: pa.Scalar) -> str:
        table = self._lookups[name].table
        return f"id {found.as_py()} in {name!r} is outside of the {table.rows} rows of table {table.name!r}"


def _numbers(column: pa.Array, name: str, bad: dict[int, str]) -> Floats:
    numbers: Floats = column.fill_null(0).to_numpy(zero_copy_only=False)
    note(bad, ~np.isfinite(numbers), lambda row: f"{name!r} is {numbers[row]}, not a finite number of 32 bits")
    return numbers


def _table_rows(column: pa.Array, lookup: Lookup) -> tuple[Ints, Mask]:
    """For each id its row in the table, and whether there is none."""
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if lookup.hashing:
        text = pa.types.is_large_binary(column.type)
        hashes = hash_texts(*bytes_of(column)) if text else hash_numbers(_whole_numbers(column))
        rows, outside = to_rows(hashes, lookup.table.rows), np.zeros(len(column), dtype=bool)
    else:
        rows = _whole_numbers(column)
        outside = (rows < 0) | (rows >= lookup.table.rows)
    return np.where(missing, MISSING_ROW, rows), outside


def _whole_numbers(column: pa.Array) -> Ints:
    numbers: Ints = column.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers
