"""What sources hand out, for tests."""

from collections.abc import Sequence

import numpy as np

from workers.sources.schema import START, Consumed, Ragged, Samples, Source


def batches(
    source: Source,
    rank: int = 0,
    world_size: int = 1,
    size: int = 4,
    epochs: int = 1,
    seed: int = 0,
    start: Consumed = START,
) -> list[Samples]:
    """All batches of one rank."""
    return list(source.train_batches(rank, world_size, size, epochs, seed, start))


def steps(
    source: Source, world_size: int, size: int, epochs: int = 1, seed: int = 0, start: Consumed = START
) -> list[Samples]:
    """All steps, each the batches of all ranks in one."""
    ranks = [batches(source, rank, world_size, size, epochs, seed, start) for rank in range(world_size)]
    assert [len(made) for made in ranks] == [source.steps(world_size, size, epochs, start)] * world_size
    assert all(len({samples.taken for samples in step}) == 1 for step in zip(*ranks, strict=True))
    return [joined(step) for step in zip(*ranks, strict=True)]


def joined(parts: Sequence[Samples]) -> Samples:
    """Several batches as one."""
    return Samples(
        labels=np.concatenate([part.labels for part in parts]),
        ids={
            name: Ragged(
                np.concatenate([part.ids[name].values for part in parts]),
                np.concatenate([part.ids[name].lengths for part in parts]),
            )
            for name in parts[0].ids
        },
        dense=np.concatenate([part.dense for part in parts]),
        rows=sum(part.taken for part in parts),
    )


def lists(samples: Samples, feature: str) -> list[list[int]]:
    """The ids of a feature, by sample."""
    ragged = samples.ids[feature]
    return [part.tolist() for part in np.split(ragged.values, np.cumsum(ragged.lengths)[:-1])]


def assert_equal(one: Samples, two: Samples) -> None:
    """The same samples, in the same order."""
    np.testing.assert_array_equal(one.labels, two.labels)
    np.testing.assert_array_equal(one.dense, two.dense)
    assert list(one.ids) == list(two.ids)
    for name in one.ids:
        np.testing.assert_array_equal(one.ids[name].values, two.ids[name].values)
        np.testing.assert_array_equal(one.ids[name].lengths, two.ids[name].lengths)
    assert one.taken == two.taken
