"""Columns against plain code that takes one row after the other, wherever in a file the rows of a batch lie."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workers.streams import lists
from workers.job import ColumnsSpec
from workers.sources.column_types import as_type, column_types, common_types
from workers.sources.columns import Columns
from workers.sources.hashing import hash_numbers, hash_texts, to_rows
from workers.sources.schema import Table
from workers.sources.tables import Lookup

SPEC = ColumnsSpec(label="y", dense=("x",), ids=("user", "word"), sequences=("films", "words"))
LONGEST, WORDS, ROWS = 3, 1000, 5
LOOKUPS = {
    "user": Lookup(Table("user", ROWS), hashing=False),
    "word": Lookup(Table("word", WORDS), hashing=True),
    "films": Lookup(Table("films", ROWS), hashing=False),
    "words": Lookup(Table("word", WORDS), hashing=True),
}
NUMBERS = st.none() | st.integers(-1, ROWS)
TEXTS = st.none() | st.text(max_size=6)
ROW = st.fixed_dictionaries(
    {
        "y": st.sampled_from([0, 1, 1, 0, 2, None]),
        "x": st.none() | st.floats(width=32),
        "user": NUMBERS,
        "word": TEXTS,
        "films": st.none() | st.lists(NUMBERS, max_size=5),
        "words": st.none() | st.lists(TEXTS, max_size=5),
    }
)
TYPES = {
    "y": pa.int8(),
    "x": pa.float64(),
    "user": pa.int32(),
    "word": pa.string(),
    "films": pa.list_(pa.int16()),
    "words": pa.list_(pa.string()),
}


def word_row(text: str | None) -> int:
    data = (text or "").encode()
    hashed = to_rows(hash_texts(np.frombuffer(data, np.uint8), np.array([0, len(data)])), WORDS)
    return 0 if text is None else int(hashed[0])


def is_bad(row: dict[str, Any]) -> bool:
    ids = [row["user"], *(row["films"] or [])[-LONGEST:]]
    return (
        row["y"] not in (0, 1)
        or (row["x"] is not None and not math.isfinite(row["x"]))
        or any(number is not None and not 0 <= number < ROWS for number in ids)
    )


@given(rows=st.lists(ROW, min_size=1, max_size=12), data=st.data())
def test_a_part_of_a_table(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    given_rows = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()})
    types = common_types(SPEC, {"a file": column_types(SPEC, ["user", "films"], given_rows.schema, "a file")})
    table = pa.table({name: as_type(given_rows.column(name), kind) for name, kind in types.items()})
    start = data.draw(st.integers(0, len(rows) - 1))
    part = slice(start, data.draw(st.integers(start + 1, len(rows))))
    decoded = Columns(SPEC, LOOKUPS, LONGEST).decode(table.slice(part.start, part.stop - part.start))

    assert set(decoded.bad) == {place for place, row in enumerate(rows[part]) if is_bad(row)}
    samples = decoded.samples
    found = zip(*(lists(samples, name) for name in ("user", "word", "films", "words")), strict=True)
    for place, (row, ids) in enumerate(zip(rows[part], found, strict=True)):
        if not is_bad(row):
            assert samples.labels[place] == row["y"]
            assert samples.dense[place].tolist() == [row["x"] or 0]
            assert ids == (
                [row["user"] or 0],
                [word_row(row["word"])],
                [number or 0 for number in (row["films"] or [])[-LONGEST:]],
                [word_row(text) for text in (row["words"] or [])[-LONGEST:]],
            )


def test_numbers_above_63_bits_are_hashed_by_their_bits() -> None:
    large = pa.chunked_array([pa.array([2**64 - 1], pa.uint64())])
    (number,) = as_type(large, pa.int64()).to_pylist()
    assert hash_numbers(np.array([number])).tolist() == hash_numbers(np.array([2**64 - 1], np.uint64)).tolist()
