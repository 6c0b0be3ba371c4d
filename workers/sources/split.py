"""How a sequence of samples is cut into steps and shared out between ranks."""

import numpy as np

from workers.sources.schema import Ints


def step_count(samples: int, world_size: int, batch_size: int) -> int:
    """Steps of one pass over `samples`. The tail makes one last, smaller step if it holds a sample for every rank."""
    whole, tail = divmod(samples, world_size * batch_size)
    return whole + (tail >= world_size)


def train_share(samples: int, step: int, rank: int, world_size: int, batch_size: int) -> slice:
    """The samples that `rank` trains in `step`: consecutive ones, as many as on every other rank.

    A step takes `world_size * batch_size` consecutive samples. The last one is cut evenly, which leaves out at most
    `world_size - 1` samples: gradients are averaged over ranks, so unequal shares would weigh samples unequally.
    """
    first = step * world_size * batch_size
    share = min(batch_size, (samples - first) // world_size)
    assert share > 0, f"step {step} is beyond the {samples} samples"
    start = first + rank * share
    return slice(start, start + share)


def holdout_share(samples: int, rank: int, world_size: int, batch_size: int) -> list[tuple[Ints, int]]:
    """Per batch the indices of the held-out samples of `rank`, and how many of them count.

    Every sample counts exactly once over all ranks. The last batches are padded with sample 0 up to `batch_size`.
    """
    share = -(-samples // world_size)
    mine = np.arange(min(rank * share, samples), min((rank + 1) * share, samples), dtype=np.int64)
    batches = []
    for start in range(0, share, batch_size):
        chunk = mine[start : start + batch_size]
        batches.append((np.pad(chunk, (0, batch_size - len(chunk))), len(chunk)))
    return batches
