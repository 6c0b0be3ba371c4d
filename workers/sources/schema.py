"""What a data source offers, and how it hands samples over: numpy arrays, so a source needs neither torch nor Ray."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Table:
    """An embedding table that the data needs: ids run from 0 to `rows` - 1."""

    name: str
    rows: int


@dataclass(frozen=True)
class Feature:
    """An id feature. `max_length` 1 means exactly one id per sample; more means a sequence of 0 to `max_length` ids."""

    name: str
    table: str
    max_length: int = 1


@dataclass(frozen=True)
class Schema:
    """The features of a source. Features that name the same table share its rows; `dense` counts the dense features."""

    tables: tuple[Table, ...]
    features: tuple[Feature, ...]
    dense: int = 0

    def features_of(self, table: str) -> list[str]:
        """Names of the features that look up `table`, in the order of the schema."""
        return [feature.name for feature in self.features if feature.table == table]


@dataclass(frozen=True)
class Ragged:
    """The ids of one feature: `values` of all samples one after the other, and `lengths` with one entry per sample."""

    values: Ints
    lengths: Ints


@dataclass(frozen=True)
class Consumed:
    """How much of the data is trained: `steps` steps, made of `samples` samples over all ranks, bad rows included."""

    steps: int = 0
    samples: int = 0


START = Consumed()


@dataclass(frozen=True)
class Samples:
    """Some samples: `labels` of shape (n,), each 0 or 1, `ids` by feature, `dense` of shape (n, dense features).

    `rows` counts the rows of the source that they were made of, more than there are samples where bad rows were left
    out; None where each row made a sample.
    """

    labels: Floats
    ids: Mapping[str, Ragged]
    dense: Floats = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    rows: int | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def taken(self) -> int:
        """How far these samples bring the rank on in the data, bad rows included."""
        return len(self) if self.rows is None else self.rows


@dataclass(frozen=True)
class HeldOut:
    """A batch of held-out samples. Only the first `valid` count; the rest pads the batch to an equal size on all ranks.

    `popularity` of shape (n,) scores each sample by how common its item was in training; None where that means nothing.
    """

    samples: Samples
    valid: int
    popularity: Floats | None = None


class Source(Protocol):
    """A source of training data. Every rank opens its own; equal arguments give equal data on any machine.

    All epochs form one stream of samples. A step takes the next `world_size * batch_size` of them, and any world size
    or batch size may go on from where another one was.
    """

    @property
    def schema(self) -> Schema:
        """The features, known before the first batch."""
        ...

    def steps(self, world_size: int, batch_size: int, epochs: int, start: Consumed = START) -> int:
        """Number of batches that `train_batches` yields from `start` on, the same on every rank."""
        ...

    def train_batches(
        self, rank: int, world_size: int, batch_size: int, epochs: int, seed: int, start: Consumed = START
    ) -> Iterator[Samples]:
        """The batches of `rank` from `start` on, each made of `batch_size` rows; the very last one may be smaller."""
        ...

    def holdout(self, rank: int, world_size: int, batch_size: int) -> Iterator[HeldOut]:
        """The share of `rank` in the held-out samples: as many batches as every rank has, each of `batch_size`."""
        ...
