"""In which order the rows of an epoch are read, and which of them are in memory together.

Rows come in groups that are read as a whole: a row group of a Parquet file, or some thousand lines of text. A window
is a run of groups that are in memory together. Everything follows from the sizes of the groups by arithmetic, so
reading can begin anywhere.
"""

from dataclasses import dataclass

import numpy as np

from workers.sources.schema import Ints


@dataclass(frozen=True)
class Window:
    """Groups that are in memory together, and which make the places from `start` to `start` + `rows` of an epoch.

    `key` gives the random order of their rows; None leaves them in the order of the files.
    """

    groups: tuple[int, ...]
    start: int
    rows: int
    key: tuple[int, ...] | None

    def order(self) -> Ints:
        """The rows of the window, counted through its groups, in the order in which they are trained."""
        return np.arange(self.rows) if self.key is None else np.random.default_rng(self.key).permutation(self.rows)


class EpochOrder:
    """The order of one epoch.

    With a `key`, the groups are permuted, and then the rows within each window of `window` groups; without, everything
    is in the order of the files, and a window is a single group. `rows` has the number of rows to train of each group.
    """

    def __init__(self, rows: Ints, window: int, key: tuple[int, int] | None) -> None:
        groups = np.flatnonzero(rows)
        self._key = key
        self._window = 1 if key is None else window
        self._groups = groups if key is None else np.random.default_rng(key).permutation(groups)
        self._starts = np.concatenate([[0], np.cumsum(rows[self._groups])])

    def window_at(self, place: int) -> Window:
        """The window that holds a place of the epoch."""
        group = int(np.searchsorted(self._starts, place, side="right")) - 1
        first = group - group % self._window
        last = min(first + self._window, len(self._groups))
        start = int(self._starts[first])
        # A trailing 0 would not change the generator, so windows count from 1.
        key = None if self._key is None else (*self._key, 1 + first // self._window)
        return Window(tuple(self._groups[first:last].tolist()), start, int(self._starts[last]) - start, key)
