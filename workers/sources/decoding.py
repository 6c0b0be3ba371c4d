"""From rows as they are read to samples: what the decoders of all file formats share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from workers.sources.hashing import Bytes
from workers.sources.schema import Ints, Samples, Schema

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Decoded:
    """A sample for each row, and for each bad row its place among them with the reason; its sample means nothing."""

    samples: Samples
    bad: Mapping[int, str]


class Decoder(Protocol):
    """From rows to samples."""

    @property
    def schema(self) -> Schema:
        """The features that the samples have."""
        ...

    def decode(self, rows: pa.Table) -> Decoded:
        """At least one row, as `RowGroups.read` gives them."""
        ...


def note(bad: dict[int, str], mask: npt.NDArray[Any], reason: Callable[..., str]) -> None:
    """Note the bad rows of a `mask` of shape (n,) or (n, columns). `reason` takes row and column; the first counts."""
    for row, *column in np.argwhere(mask).tolist():
        if row not in bad:
            bad[row] = reason(row, *column)


def column_of(rows: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def bytes_of(column: pa.Array) -> tuple[Bytes, Ints]:
    """Bytes and offsets, of shape (n + 1,), of a large binary column."""
    if not len(column):
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    return np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8), ends
