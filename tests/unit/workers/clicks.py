"""Parquet files with clicks, for tests."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workers.job import DataSpec
from workers.sources import open_source
from workers.sources.schema import Samples, Source

COLUMNS = {"label": "clicked", "dense": ["age"], "ids": ["user", "item"], "sequences": ["history"]}
# The user is the number of the row, so that every sample can be told from the others.
PLAIN_USER = {"user": {"rows": 1000, "hashing": False}}
# Files in the order of their paths, with their rows and the rows of a row group.
FILES = {"part-2.parquet": (10, 4), "part-10.parquet": (7, 7), "sub/part-1.parquet": (13, 3)}
TOTAL = 30


def table(rows: range, **columns: Any) -> pa.Table:
    """Rows that follow from their numbers; `columns` take the place of others."""
    return pa.table(
        {
            "clicked": [row % 3 == 0 for row in rows],
            "age": [row / 2 for row in rows],
            "unused": ["x" * 10 for _ in rows],
            "user": list(rows),
            "item": [f"i{row % 7}" for row in rows],
            "history": [list(range(row, row + row % 4)) for row in rows],
        }
        | columns
    )


def write(path: Path, rows: range, group: int = 100, **columns: Any) -> Path:
    """A file of such rows, `group` to a row group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(rows, **columns), path, row_group_size=group)
    return path


def write_files(folder: Path) -> Path:
    """`FILES`, and one that is no Parquet."""
    first = 0
    for name, (rows, group) in FILES.items():
        write(folder / name, range(first, first + rows), group)
        first += rows
    (folder / "readme.txt").write_text("no Parquet")
    return folder


def spec(folder: Path | str, **changes: Any) -> DataSpec:
    """The `data` section for such files, with nothing held out."""
    params = {"tables": PLAIN_USER, "holdout": 0, **changes.pop("params", {})}
    return DataSpec(**({"source": "parquet", "path": str(folder), "columns": COLUMNS, "params": params} | changes))


def parquet(path: Path | str, **changes: Any) -> Source:
    """The source of `spec`."""
    return open_source(spec(path, **changes))


def users(samples: Samples) -> list[int]:
    """The number of each row."""
    found: list[int] = samples.ids["user"].values.tolist()
    return found
