"""How the stream of samples is cut into steps and shared out between ranks.

The stream of a job is its epochs one after the other: sample k of it is place k % n of epoch k // n, where an epoch
has n samples. A position is a number of samples, so any number of ranks can go on from where another one was.
"""

from collections.abc import Iterator

import numpy as np

from workers.sources.schema import Ints


def steps_left(samples: int, taken: int, world_size: int, batch_size: int) -> int:
    """Steps that are left of a stream of `samples` when `taken` are trained.

    The tail makes one last, smaller step if it holds a sample for every rank.
    """
    whole, tail = divmod(max(0, samples - taken), world_size * batch_size)
    return whole + (tail >= world_size)


def train_shares(samples: int, taken: int, rank: int, world_size: int, batch_size: int) -> Iterator[slice]:
    """For each step that is left, the part of the stream that `rank` trains: as many samples as on every other rank.

    A step takes the next `world_size * batch_size` samples of the stream, so it may straddle two epochs. The last one
    is cut evenly, which leaves out at most `world_size - 1` samples of the whole job: gradients are averaged over
    ranks, so unequal shares would weigh samples unequally.
    """
    for step in range(steps_left(samples, taken, world_size, batch_size)):
        first = taken + step * world_size * batch_size
        share = min(batch_size, (samples - first) // world_size)
        start = first + rank * share
        yield slice(start, start + share)


def by_epoch(share: slice, epoch_samples: int) -> Iterator[tuple[int, slice]]:
    """A part of the stream as epochs with the places in them, in the order of the stream."""
    start = share.start
    while start < share.stop:
        epoch, place = divmod(start, epoch_samples)
        count = min(share.stop - start, epoch_samples - place)
        yield epoch, slice(place, place + count)
        start += count


def holdout_shares(samples: int, rank: int, world_size: int, batch_size: int) -> Iterator[slice]:
    """For each batch the held-out samples of `rank`, as many batches as on every other rank.

    Every sample is there exactly once over all ranks. The last batches may be smaller than `batch_size`, or empty.
    """
    share = -(-samples // world_size)
    end = min((rank + 1) * share, samples)
    for start in range(rank * share, (rank + 1) * share, batch_size):
        yield slice(min(start, end), min(start + batch_size, end))


def padded(places: slice, batch_size: int) -> Ints:
    """The places as an array of shape (batch_size,), filled up with place 0."""
    indices = np.arange(places.start, places.stop, dtype=np.int64)
    return np.pad(indices, (0, batch_size - len(indices)))
