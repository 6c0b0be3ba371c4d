"""Text files as groups of rows: a line is a row, and so many of them make a group.

Where each group begins is found in one pass over the files when they are opened. With that, reading can begin
anywhere. It takes some dozen bytes for a group, about 15 MB for a billion lines.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

from workers.job import InvalidJob
from workers.sources.schema import Ints
from workers.sources.storage import Files

log = structlog.get_logger(__name__)

# Lines of a group. More would make a rank read more than its share of a step, fewer would take more memory.
LINES = 4096
_BLOCK = 8 * 2**20
_NEWLINE = 10
_GZIP = b"\x1f\x8b"
# Passes over less are quick; of longer ones each tenth is logged.
_LONG_PASS = 2**30
# Files that are held open for reading.
_OPEN = 32


class LineFiles:
    """See `RowGroups`. A group has one column, `line`, with the newline of each. Lines of a file count from 1."""

    def __init__(self, files: Files) -> None:
        """Reads every file once. Raises `InvalidJob` for compressed files and if there is not a line."""
        self._files = files
        try:
            sizes = [info.size for info in files.filesystem.get_file_info(list(files.paths))]
            tell = _Progress(sum(sizes)).add
            found = [self._find_lines(file, tell) for file in range(len(sizes))]
        except (OSError, pa.ArrowException) as error:
            raise InvalidJob([f"data.path: cannot read {files.name(0)}: {' '.join(str(error).split())}"]) from error
        self._starts = np.concatenate([starts for starts, _ in found])
        by_size = zip(found, sizes, strict=True)
        self._stops = np.concatenate([np.append(starts, size)[1:] for (starts, _), size in by_size])
        self._group_ends = np.cumsum([len(starts) for starts, _ in found])
        self._line_ends = np.cumsum([lines for _, lines in found])
        self.rows = np.concatenate([_sizes(lines) for _, lines in found])
        if not len(self.rows):
            raise InvalidJob([f"data.path: {files.name(0)} is empty; name files that have lines"])
        self._opened = lru_cache(maxsize=_OPEN)(self._open)

    def read(self, group: int) -> pa.Table:
        """The lines of a group. Raises `OSError`."""
        file = int(np.searchsorted(self._group_ends, group, side="right"))
        start, stop = int(self._starts[group]), int(self._stops[group])
        try:
            data = self._opened(file).read_at(stop - start, start)
        except (OSError, pa.ArrowException) as error:
            raise OSError(f"cannot read {self._files.name(file)}: {' '.join(str(error).split())}") from error
        if not data.endswith(b"\n"):
            data += b"\n"
        ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == _NEWLINE) + 1
        if len(ends) != self.rows[group]:
            raise OSError(f"{self._files.name(file)} has changed since the job opened it; start the job again")
        offsets = pa.py_buffer(np.concatenate([[0], ends]))
        lines = pa.Array.from_buffers(pa.large_binary(), len(ends), [None, offsets, pa.py_buffer(data)])
        return pa.table([lines], names=["line"])

    def where(self, row: int) -> str:
        """See `RowGroups`."""
        file = int(np.searchsorted(self._line_ends, row, side="right"))
        return f"{self._files.name(file)}, line {row - (self._line_ends[file - 1] if file else 0) + 1}"

    def _open(self, file: int) -> Any:
        return self._files.filesystem.open_input_file(self._files.paths[file])

    def _find_lines(self, file: int, tell: Callable[[int], None]) -> tuple[Ints, int]:
        """Where each group of a file begins, and how many lines the file has."""
        starts = [np.zeros(1, dtype=np.int64)]
        lines = size = 0
        last = _NEWLINE
        with self._files.filesystem.open_input_stream(self._files.paths[file], compression=None) as stream:
            while block := stream.read(_BLOCK):
                if not size and block.startswith(_GZIP):
                    raise InvalidJob([f"data.path: {self._files.name(file)} is compressed; unpack it with gunzip"])
                ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == _NEWLINE)
                starts.append(size + 1 + ends[LINES - 1 - lines % LINES :: LINES])
                lines, size, last = lines + len(ends), size + len(block), block[-1]
                tell(len(block))
        lines += last != _NEWLINE
        return np.concatenate(starts)[: -(-lines // LINES)], lines


def _sizes(lines: int) -> Ints:
    """Lines of each group of a file."""
    return np.minimum(LINES, lines - np.arange(0, lines, LINES))


class _Progress:
    """Says in the log how far a long pass is."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._told = total, 0, 0

    def add(self, count: int) -> None:
        """So many more bytes are read."""
        self._done += count
        tenths = 10 * self._done // max(1, self._total)
        if self._total >= _LONG_PASS and tenths > self._told:
            self._told = tenths
            log.info("finding lines", percent=10 * tenths, read_bytes=self._done, of_bytes=self._total)
