"""From lines in the format of Criteo to samples, all lines of a batch at once; only bad ones are looked at singly."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from workers.sources.criteo import CATEGORIES, FEATURES, NUMBERS
from workers.sources.decoding import Decoded, Mask, bytes_of, column_of, note
from workers.sources.hashing import MISSING_ROW, Bytes, Hashes, hash_numbers, to_rows
from workers.sources.schema import Feature, Floats, Ints, Ragged, Samples, Schema, Table

_COLUMNS = 1 + NUMBERS + CATEGORIES
_TAB, _NEWLINE, _RETURN, _MINUS, _ZERO, _ONE = b"\t\n\r-01"
# More digits could leave 63 bits, or 64 where they are hexadecimal.
_DECIMAL_DIGITS, _HEXADECIMAL_DIGITS = 18, 16
_NO_DIGIT = 255


def _digits() -> Bytes:
    """The value of each character as a digit."""
    values = np.full(256, _NO_DIGIT, dtype=np.uint8)
    for text in (b"0123456789abcdef", b"0123456789ABCDEF"):
        values[np.frombuffer(text, dtype=np.uint8)] = np.arange(16)
    return values


_DIGITS = _digits()


@dataclass(frozen=True)
class _Fields:
    """Fields of lines, `starts` and `stops` of shape (lines, columns) in `data`. Those of bad lines are empty."""

    data: Bytes
    starts: Ints
    stops: Ints

    def columns(self, first: int, count: int) -> "_Fields":
        """Some of the columns."""
        part = slice(first, first + count)
        return _Fields(self.data, self.starts[:, part], self.stops[:, part])

    def empty(self) -> Mask:
        """Which fields have nothing in them."""
        is_empty: Mask = self.starts == self.stops
        return is_empty

    def text(self, line: int, column: int) -> str:
        """A field for people."""
        text = self.data[self.starts[line, column] : self.stops[line, column]].tobytes()
        return repr(text[:20].decode("ascii", errors="replace"))


class CriteoLines:
    """See `Decoder`. A number x becomes log(1 + max(x, 0)), and a missing one 0; a missing category looks up row 0.

    A line is bad if it has not 40 columns, its label is not 0 or 1, a number is not whole or a category not
    hexadecimal.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        """`rows` of the 26 tables, which are called as their features are."""
        self._rows = np.array(rows, dtype=np.int64)
        self.schema = Schema(
            tables=tuple(Table(name, count) for name, count in zip(FEATURES, rows, strict=True)),
            features=tuple(Feature(name, name) for name in FEATURES),
            dense=NUMBERS,
        )

    def decode(self, rows: pa.Table) -> Decoded:
        """Lines with their newlines, in the column `line`."""
        data, offsets = bytes_of(column_of(rows, "line"))
        bad: dict[int, str] = {}
        fields = _split(data[offsets[0] : offsets[-1]], offsets - offsets[0], bad)
        labels = _labels(fields.columns(0, 1), bad)
        dense = _dense(fields.columns(1, NUMBERS), bad)
        table_rows = self._table_rows(fields.columns(1 + NUMBERS, CATEGORIES), bad).T.copy()
        one = np.ones(len(labels), dtype=np.int64)
        ids = {name: Ragged(table_rows[index], one) for index, name in enumerate(FEATURES)}
        return Decoded(Samples(labels, ids, dense), bad)

    def _table_rows(self, fields: _Fields, bad: dict[int, str]) -> Ints:
        values, good = _parse(fields, 16, _HEXADECIMAL_DIGITS)
        note(bad, ~good, lambda line, column: f"{FEATURES[column]} is {fields.text(line, column)}, not hexadecimal")
        return np.where(fields.empty(), MISSING_ROW, to_rows(hash_numbers(values), self._rows))


def _split(data: Bytes, offsets: Ints, bad: dict[int, str]) -> _Fields:
    separators = np.flatnonzero((data == _TAB) | (data == _NEWLINE))
    first = np.searchsorted(separators, offsets)
    columns = np.diff(first)
    whole = columns == _COLUMNS
    note(bad, ~whole, lambda line: f"{columns[line]} columns instead of {_COLUMNS}")
    stops = np.zeros((len(columns), _COLUMNS), dtype=np.int64)
    stops[whole] = separators[first[:-1][whole, None] + np.arange(_COLUMNS)]
    starts = np.zeros_like(stops)
    starts[whole, 0] = offsets[:-1][whole]
    starts[whole, 1:] = stops[whole, :-1] + 1
    before = np.maximum(stops[:, -1] - 1, 0)
    stops[:, -1] -= (stops[:, -1] > starts[:, -1]) & (data[before] == _RETURN)
    return _Fields(data, starts, stops)


def _labels(fields: _Fields, bad: dict[int, str]) -> Floats:
    found = fields.data[fields.starts[:, 0]]
    good = (fields.stops - fields.starts == 1)[:, 0] & ((found == _ZERO) | (found == _ONE))
    note(bad, ~good, lambda line: f"label is {fields.text(line, 0)}, not 0 or 1")
    labels: Floats = (found == _ONE).astype(np.float32)
    return labels


def _dense(fields: _Fields, bad: dict[int, str]) -> Floats:
    negative = (fields.data[fields.starts] == _MINUS) & (fields.stops - fields.starts > 1)
    values, good = _parse(_Fields(fields.data, fields.starts + negative, fields.stops), 10, _DECIMAL_DIGITS)
    note(bad, ~good, lambda line, column: f"I{column + 1} is {fields.text(line, column)}, not a whole number")
    logarithms: Floats = np.log1p(np.where(negative, 0, values).astype(np.float64)).astype(np.float32)
    return logarithms


def _parse(fields: _Fields, base: int, most: int) -> tuple[Hashes, Mask]:
    """The values of fields with at most so many digits, 0 for empty ones; and which fields are such numbers."""
    lengths = fields.stops - fields.starts
    values = np.zeros(lengths.shape, dtype=np.uint64)
    good = lengths <= most
    for place in range(min(most, int(lengths.max()))):
        there = lengths > place
        digits = _DIGITS[fields.data[np.where(there, fields.stops - 1 - place, 0)]]
        good &= ~there | (digits < base)
        values += np.where(there, digits, 0).astype(np.uint64) * np.uint64(base**place)
    return values, good
