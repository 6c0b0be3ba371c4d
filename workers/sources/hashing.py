"""From ids to rows of a table by a fixed hash: the same on every machine, in every run, for every column.

Numbers are hashed by the output function of SplitMix64. The hash of a text is the sum, modulo 2**64, of the hashes of
its bytes, each together with its place in the text. Row 0 is kept for missing ids, so the others share rows 1 and up.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from workers.sources.schema import Ints

Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

MISSING_ROW = 0


def hash_numbers(numbers: npt.NDArray[Any]) -> Hashes:
    """Of whole numbers of 64 bits, signed or not."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def hash_texts(data: Bytes, offsets: Ints) -> Hashes:
    """Of n texts: text i is `data[offsets[i]:offsets[i + 1]]`, so `offsets` has shape (n + 1,)."""
    lengths = np.diff(offsets)
    used = data[offsets[0] : offsets[-1]]
    places = np.arange(len(used)) - np.repeat(offsets[:-1] - offsets[0], lengths)
    sums = np.zeros(len(used) + 1, dtype=np.uint64)
    np.cumsum(hash_numbers(places << 8 | used), out=sums[1:])
    hashes: Hashes = np.diff(sums[offsets - offsets[0]])
    return hashes


def to_rows(hashes: Hashes, rows: int | Ints) -> Ints:
    """Rows 1 to `rows` - 1 of a table; of several ones where `rows` is an array."""
    return (hashes % np.asarray(rows - 1, dtype=np.uint64)).astype(np.int64) + 1
