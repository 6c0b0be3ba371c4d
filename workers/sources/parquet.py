"""Parquet files on a disk or in an object store: a label, dense numbers, ids and sequences of ids in each row.

Light: pyarrow is imported where files are opened, which the control plane never does.
"""

from typing import Any

from pydantic import Field

from workers.job import ColumnsSpec, DataSpec, InvalidJob, Spec, parse_section
from workers.sources.bad_rows import BadRowLog
from workers.sources.schema import Source
from workers.sources.storage import check_path, find_files
from workers.sources.tables import LEAST_ROWS, Lookup, lookups


class Params(Spec):
    """`data.params`.

    Each column of ids has a table of its own with `rows` rows, unless `tables` says otherwise (see `TableSpec`). With
    `hashing`, an id may be any whole number or text; row 0 is kept for missing ones. Without, an id is the number of a
    row, a missing one means row 0, and one outside of the table makes its row a bad one.

    `max_length` ids of a sequence are used, the last ones. `holdout` is the share of rows held out. With
    `order: shuffled`, `shuffle_row_groups` row groups are in memory at a time, and their rows are mixed.
    """

    tables: dict[str, dict[str, Any]] = Field(default_factory=dict)
    rows: int = Field(default=100_000, ge=LEAST_ROWS)
    hashing: bool = True
    max_length: int = Field(default=50, ge=2)
    holdout: float = Field(default=0.1, ge=0, lt=1)
    shuffle_row_groups: int = Field(default=4, ge=1)


def check(data: DataSpec, *, on_disk: bool = True) -> None:
    """Raises `InvalidJob` for columns and parameters that do not fit, and for a local path that does not exist."""
    check_path(data, on_disk=on_disk)
    _parse(data)


def open_source(data: DataSpec) -> Source:
    """Read the footer of every file. Raises `InvalidJob` for files that are not what the job says."""
    from workers.sources.columns import Columns
    from workers.sources.parquet_files import ParquetFiles
    from workers.sources.row_source import RowSource

    columns, params, found = _parse(data)
    files = find_files(check_path(data), ".parquet")
    return RowSource(
        ParquetFiles(files, columns, [column for column, lookup in found.items() if not lookup.hashing]),
        Columns(columns, found, params.max_length),
        holdout=params.holdout,
        window=params.shuffle_row_groups,
        shuffled=data.order == "shuffled",
        bad_rows=BadRowLog(data.max_bad_rows),
    )


def _parse(data: DataSpec) -> tuple[ColumnsSpec, Params, dict[str, Lookup]]:
    if data.columns is None:
        raise InvalidJob(
            ["data.columns: source 'parquet' needs it: {label: COLUMN, dense: [...], ids: [...], sequences: [...]}"]
        )
    params = parse_section(Params, data.params, at="data.params")
    found = lookups(data.columns.features, params.tables, rows=params.rows, hashing=params.hashing)
    return data.columns, params, found
