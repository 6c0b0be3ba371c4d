"""MovieLens-100K: will this user rate this film 4 or better, given the films that the user rated before?

The file comes with a package that `make setup` installs; `data.path` names another copy. Interactions are in global
time order. The last tenth is held out, so that every held-out interaction is later than all that were trained.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from pydantic import Field

from workers.job import DataSpec, InvalidJob, Spec, parse_section
from workers.sources.schema import START, Consumed, Feature, Floats, HeldOut, Ints, Ragged, Samples, Schema, Table
from workers.sources.split import by_epoch, holdout_shares, padded, steps_left, train_shares

LIKED = 4.0
_COLUMNS = ("user_id", "item_id", "rating", "timestamp")


class Params(Spec):
    """`data.params`: `history` counts the films looked back at, `holdout` is the share of interactions held out."""

    history: int = Field(default=20, ge=1)
    holdout: float = Field(default=0.1, gt=0, lt=1)


def check(data: DataSpec, *, on_disk: bool = True) -> None:
    """Raises `InvalidJob` for unknown parameters and for a missing file."""
    parse_section(Params, data.params, at="data.params")
    if on_disk:
        _find(data)


def open_source(data: DataSpec) -> "MovieLens":
    """Read the file. Raises `InvalidJob` if it is missing or not what it should be."""
    params = parse_section(Params, data.params, at="data.params")
    return MovieLens(*_read(_find(data)), params, shuffled=data.order == "shuffled")


class MovieLens:
    """The interactions as a source with the features `user`, `item` and `history` (which shares the item table)."""

    def __init__(self, users: Ints, items: Ints, ratings: Floats, params: Params, *, shuffled: bool) -> None:
        self._users, self._items, self._params, self._shuffled = users, items, params, shuffled
        self._labels = (ratings >= LIKED).astype(np.float32)
        self._trained = len(users) - round(len(users) * params.holdout)
        self._by_user = np.argsort(users, kind="stable")
        self._place = np.empty_like(self._by_user)
        self._place[self._by_user] = np.arange(len(users))
        first = np.searchsorted(users[self._by_user], users)
        self._history_length = np.minimum(self._place - first, params.history)
        count = np.bincount(items[: self._trained], minlength=int(items.max()) + 1)
        self._popularity = (count / max(1, count.max())).astype(np.float32)
        self.schema = Schema(
            tables=(Table("user", int(users.max()) + 1), Table("item", int(items.max()) + 1)),
            features=(Feature("user", "user"), Feature("item", "item"), Feature("history", "item", params.history)),
        )

    def steps(self, world_size: int, batch_size: int, epochs: int, start: Consumed = START) -> int:
        """What is left of `epochs` passes over the interactions that are not held out."""
        return steps_left(epochs * self._trained, start.samples, world_size, batch_size)

    def train_batches(
        self, rank: int, world_size: int, batch_size: int, epochs: int, seed: int, start: Consumed = START
    ) -> Iterator[Samples]:
        """In time order, every epoch the same; or shuffled anew in each epoch."""
        shuffled_for, order = -1, np.arange(self._trained)
        for share in train_shares(epochs * self._trained, start.samples, rank, world_size, batch_size):
            rows = []
            for epoch, places in by_epoch(share, self._trained):
                if self._shuffled and epoch != shuffled_for:
                    shuffled_for, order = epoch, np.random.default_rng((seed, epoch)).permutation(self._trained)
                rows.append(order[places])
            yield self._samples(np.concatenate(rows))

    def holdout(self, rank: int, world_size: int, batch_size: int) -> Iterator[HeldOut]:
        """The latest interactions; their history may hold earlier held-out ones, as it would in service."""
        held_out = len(self._users) - self._trained
        for places in holdout_shares(held_out, rank, world_size, batch_size):
            rows = padded(places, batch_size) + self._trained
            yield HeldOut(self._samples(rows), places.stop - places.start, self._popularity[self._items[rows]])

    def _samples(self, rows: Ints) -> Samples:
        one = np.ones(len(rows), dtype=np.int64)
        return Samples(
            labels=self._labels[rows],
            ids={
                "user": Ragged(self._users[rows], one),
                "item": Ragged(self._items[rows], one),
                "history": self._history(rows),
            },
        )

    def _history(self, rows: Ints) -> Ragged:
        """The user's last films before each interaction, oldest first."""
        lengths = self._history_length[rows]
        ends = np.cumsum(lengths)
        starts = self._place[rows] - lengths
        places = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths) + np.repeat(starts, lengths)
        return Ragged(self._items[self._by_user[places]], lengths)


def _find(data: DataSpec) -> Path:
    if data.path is not None:
        path = Path(data.path)
        hint = "relative paths start at the working directory of the job"
    else:
        package = find_spec("recbole")
        if package is None or not package.submodule_search_locations:
            raise InvalidJob(["data.source: the package with MovieLens-100K is not installed; run `make setup`"])
        path = Path(package.submodule_search_locations[0], "dataset_example", "ml-100k", "ml-100k.inter")
        hint = "run `make setup`, or name a copy in data.path"
    if not os.path.isfile(path):
        raise InvalidJob([f"data.path: no such file: {path}; {hint}"])
    return path


def _read(path: Path) -> tuple[Ints, Ints, Floats]:
    """Users, items (both counted from 0) and ratings in time order; equal times keep the order of the file."""
    try:
        with path.open(encoding="utf-8") as lines:
            names = [column.partition(":")[0] for column in next(lines, "").rstrip("\n").split("\t")]
            missing = [column for column in _COLUMNS if column not in names]
            if missing:
                raise InvalidJob([f"data.path: {path} has no column {missing[0]!r} in its first line"])
            columns = [names.index(column) for column in _COLUMNS]
            table = np.loadtxt(lines, delimiter="\t", usecols=columns, ndmin=2)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidJob):
            raise
        raise InvalidJob([f"data.path: cannot read {path}: {error}"]) from error
    if len(table) < 2:
        raise InvalidJob([f"data.path: {path} holds {len(table)} interactions; at least 2 are needed"])
    table = table[np.argsort(table[:, 3], kind="stable")]
    users, items = (np.unique(table[:, column], return_inverse=True)[1].astype(np.int64) for column in (0, 1))
    return users, items, table[:, 2].astype(np.float32)
