"""Made-up data with the properties that matter to the schedule: skewed ids, and a chosen share of ids that repeat.

Hot ids are spread over the whole table, as hashed ids are, so that every row-wise shard gets its part of them.
"""

from collections.abc import Iterator
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from workers.job import DataSpec, InvalidJob, Spec, parse_section
from workers.sources.schema import START, Consumed, Feature, HeldOut, Ints, Ragged, Samples, Schema, Table
from workers.sources.split import holdout_shares, steps_left, train_shares

_SPREAD = 2_654_435_761  # a prime far above any table size: multiplying by it permutes the rows
_TRAIN, _HELD_OUT = 0, 1


class Params(Spec):
    """`data.params`.

    `samples` per epoch over all ranks; `features` id features with a table of `rows` rows each; `ids_per_sample` ids
    in a feature of a sample, or from `min_ids_per_sample` up to that many. Ids follow a Zipf law with exponent `zipf`
    (0 is uniform). With `id_overlap`, that share of the ids of each batch was in the previous batch too; without it,
    batches share what chance gives. `holdout_samples` are held out, `dense` dense features come with each sample.
    """

    samples: int = Field(default=65_536, ge=1)
    features: int = Field(default=2, ge=1)
    rows: int = Field(default=100_000, ge=3)
    ids_per_sample: int = Field(default=4, ge=1)
    min_ids_per_sample: int | None = Field(default=None, ge=0)
    zipf: float = Field(default=1.05, ge=0)
    id_overlap: float | None = Field(default=None, ge=0, le=1)
    dense: int = Field(default=0, ge=0)
    holdout_samples: int = Field(default=4_096, ge=0)

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.min_ids_per_sample is not None and self.min_ids_per_sample > self.ids_per_sample:
            raise ValueError("min_ids_per_sample is above ids_per_sample")
        if self.min_ids_per_sample is not None and self.id_overlap is not None:
            raise ValueError("id_overlap needs a fixed number of ids per sample; leave min_ids_per_sample out")
        return self


def check(data: DataSpec, *, on_disk: bool = True) -> None:
    """Raises `InvalidJob` for parameters that do not fit."""
    if data.path is not None:
        raise InvalidJob(["data.path: source 'synthetic' reads no file; leave it out"])
    if data.order != "time":
        raise InvalidJob([f"data.order: source 'synthetic' has no order to change (got {data.order!r}); leave it out"])
    parse_section(Params, data.params, at="data.params")


def open_source(data: DataSpec) -> "Synthetic":
    """Raises `InvalidJob` for parameters that do not fit."""
    return Synthetic(parse_section(Params, data.params, at="data.params"))


class Synthetic:
    """Features `f0`, `f1`, ... with tables `t0`, `t1`, ...; each id leans towards a label, so there is a lesson."""

    def __init__(self, params: Params) -> None:
        self._params = params
        names = range(params.features)
        sequence = params.ids_per_sample if params.min_ids_per_sample is None else max(2, params.ids_per_sample)
        self.schema = Schema(
            tables=tuple(Table(f"t{index}", params.rows) for index in names),
            features=tuple(Feature(f"f{index}", f"t{index}", sequence) for index in names),
            dense=params.dense,
        )

    def steps(self, world_size: int, batch_size: int, epochs: int, start: Consumed = START) -> int:
        """What is left of `epochs` times `samples` samples."""
        return steps_left(epochs * self._params.samples, start.samples, world_size, batch_size)

    def train_batches(
        self, rank: int, world_size: int, batch_size: int, epochs: int, seed: int, start: Consumed = START
    ) -> Iterator[Samples]:
        """Every step has ids of its own, in every epoch; a batch follows from the seed, its step and the rank alone.

        The step before one always had `batch_size` samples: only the last of a job has fewer.
        """
        shares = train_shares(epochs * self._params.samples, start.samples, rank, world_size, batch_size)
        for step, share in enumerate(shares, start.steps):
            yield self._batch((_TRAIN, seed, rank), step, share.stop - share.start, batch_size if step else 0)

    def holdout(self, rank: int, world_size: int, batch_size: int) -> Iterator[HeldOut]:
        """The same in every run, whatever the seed of training."""
        shares = holdout_shares(self._params.holdout_samples, rank, world_size, batch_size)
        for step, places in enumerate(shares):
            samples = self._batch((_HELD_OUT, 0, rank), step, batch_size, batch_size if step else 0)
            yield HeldOut(samples, places.stop - places.start)

    def _batch(self, stream: tuple[int, int, int], step: int, size: int, before: int) -> Samples:
        """The samples of one step; the step before it had `before` samples (0: there was none)."""
        draw = np.random.default_rng((*stream, step, 1))
        ids: dict[str, Ragged] = {}
        score = draw.normal(scale=0.5, size=size)
        for index, feature in enumerate(self.schema.features):
            lengths = self._lengths(draw, size)
            values = self._values((*stream, index), step, int(lengths.sum()), before * self._params.ids_per_sample)
            ids[feature.name] = Ragged(values, lengths)
            score += np.bincount(np.repeat(np.arange(size), lengths), weights=_leaning(values), minlength=size)
        dense = draw.normal(size=(size, self._params.dense)).astype(np.float32)
        return Samples((score > 0).astype(np.float32), ids, dense)

    def _lengths(self, draw: np.random.Generator, size: int) -> Ints:
        most, least = self._params.ids_per_sample, self._params.min_ids_per_sample
        return draw.integers(most if least is None else least, most, size=size, endpoint=True)

    def _values(self, stream: tuple[int, ...], step: int, count: int, before: int) -> Ints:
        """`count` ids of one feature, where the step before had `before` ids.

        To control the overlap, the fresh ids of step s come from every third row, beginning at row s mod 3. The step
        before holds its own fresh ids and repeats of the step before that, so no fresh id of s can be among them.
        """
        draw = np.random.default_rng((*stream, step, 2))
        if self._params.id_overlap is None:
            return self._spread(self._zipf(draw, count, self._params.rows))
        if self._params.id_overlap == 1:
            return draw.permutation(self._fresh(stream, 0, count))
        fresh = self._fresh(stream, step, count)
        used = self._fresh(stream, step - 1, before)[: self._fresh_count(before, step - 1)] if before else fresh[:0]
        kept = fresh[: self._fresh_count(count, step)] if len(used) else fresh
        return draw.permutation(np.concatenate([kept, draw.choice(used, count - len(kept))]) if len(used) else kept)

    def _fresh_count(self, count: int, step: int) -> int:
        """How many of a step's ids are fresh: at least one, so that the next step has something to repeat."""
        assert self._params.id_overlap is not None
        return count if step == 0 else max(1, count - round(count * self._params.id_overlap))

    def _fresh(self, stream: tuple[int, ...], step: int, count: int) -> Ints:
        draw = np.random.default_rng((*stream, step, 3))
        return self._spread(self._zipf(draw, count, self._params.rows // 3) * 3 + step % 3)

    def _zipf(self, draw: np.random.Generator, count: int, rows: int) -> Ints:
        """Ranks from 0 to `rows` - 1, by inverting the continuous power law, which needs no memory for the table."""
        uniform, exponent = draw.random(count), self._params.zipf
        if exponent == 1:
            ranks = (rows + 1) ** uniform
        else:
            ranks = (((rows + 1) ** (1 - exponent) - 1) * uniform + 1) ** (1 / (1 - exponent))
        return np.minimum(ranks.astype(np.int64) - 1, rows - 1)

    def _spread(self, ranks: Ints) -> Ints:
        return ranks * _SPREAD % self._params.rows


def _leaning(ids: Ints) -> Ints:
    """+1 or -1 for each id, by a fixed hash."""
    return (ids * 40_503 >> 8 & 1) * 2 - 1
