"""Parquet files as groups of rows: one group for each row group, of which only the columns of the job are read."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workers.job import ColumnsSpec, InvalidJob
from workers.sources.column_types import ColumnTypes, as_type, column_types, common_types
from workers.sources.storage import Files

# Footers are read by so many threads at a time: in an object store each takes a round trip or two.
_THREADS = 16
# Footers kept for reading; they grow with row groups times columns.
_FOOTERS = 32


@dataclass(frozen=True)
class _Footer:
    """What is kept of the footer of every file: the rows of each row group, and what columns are read as."""

    rows: tuple[int, ...]
    types: ColumnTypes


class ParquetFiles:
    """See `RowGroups`. Rows of a file count from 0."""

    def __init__(self, files: Files, columns: ColumnsSpec, unhashed: Sequence[str]) -> None:
        """Reads the footer of every file. `unhashed` columns hold ids that must be numbers. Raises `InvalidJob`."""
        self._files, self._columns, self._unhashed = files, columns, unhashed
        with ThreadPoolExecutor(_THREADS) as pool:
            footers = list(pool.map(self._read_footer, range(len(files.paths))))
        by_file = {files.name(file): footer.types for file, footer in enumerate(footers)}
        self._types = common_types(columns, by_file)
        self._groups = [(file, group) for file, footer in enumerate(footers) for group in range(len(footer.rows))]
        self.rows = np.array([rows for footer in footers for rows in footer.rows], dtype=np.int64)
        self._ends = np.cumsum([sum(footer.rows) for footer in footers])
        if not self.rows.sum():
            others = f" and {len(footers) - 1} others" if len(footers) > 1 else ""
            raise InvalidJob([f"data.path: no rows in {files.name(0)}{others}; name files that have some"])
        self._metadata = lru_cache(maxsize=_FOOTERS)(self._open_metadata)

    def read(self, group: int) -> pa.Table:
        """The columns of the job, as `column_types` says. Raises `OSError`."""
        file, index = self._groups[group]
        where = f"{self._files.name(file)}, row group {index}"
        try:
            with self._files.filesystem.open_input_file(self._files.paths[file]) as source:
                parquet = pq.ParquetFile(source, metadata=self._metadata(file), pre_buffer=True)
                table = parquet.read_row_group(index, columns=list(self._types))
            columns = [as_type(table.column(name), read_as) for name, read_as in self._types.items()]
        except (OSError, pa.ArrowException) as error:
            raise OSError(f"cannot read {where}: {' '.join(str(error).split())}") from error
        if table.num_rows != self.rows[group]:
            raise OSError(f"{where} has {table.num_rows} rows, not {self.rows[group]} any more; start the job again")
        return pa.table(columns, names=list(self._types))

    def where(self, row: int) -> str:
        """See `RowGroups`."""
        file = int(np.searchsorted(self._ends, row, side="right"))
        return f"{self._files.name(file)}, row {row - (self._ends[file - 1] if file else 0)}"

    def _open_metadata(self, file: int) -> pq.FileMetaData:
        with self._files.filesystem.open_input_file(self._files.paths[file]) as source:
            return pq.read_metadata(source)

    def _read_footer(self, file: int) -> _Footer:
        name = self._files.name(file)
        try:
            footer = self._open_metadata(file)
            schema = footer.schema.to_arrow_schema()
        except (OSError, pa.ArrowException) as error:
            problem = " ".join(str(error).split())
            raise InvalidJob([f"data.path: cannot read {name} as Parquet: {problem}; remove or replace it"]) from error
        rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
        return _Footer(rows, column_types(self._columns, self._unhashed, schema, name))
