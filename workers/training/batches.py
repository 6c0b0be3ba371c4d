"""From the numpy samples of a source to the batches that a TorchRec pipeline takes."""

import time
from collections import deque
from collections.abc import Iterator, Set

import torch
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from workers.sources.schema import Samples, Schema


def to_batch(samples: Samples, schema: Schema) -> Batch:
    """One `Batch` with the features of the schema, in its order, in one KeyedJaggedTensor."""
    ragged = [samples.ids[feature.name] for feature in schema.features]
    features = KeyedJaggedTensor(
        keys=[feature.name for feature in schema.features],
        values=torch.cat([torch.from_numpy(ids.values) for ids in ragged]),
        lengths=torch.cat([torch.from_numpy(ids.lengths) for ids in ragged]).to(torch.int32),
        stride=len(samples),
    )
    dense = torch.from_numpy(samples.dense.reshape(len(samples), schema.dense))
    return Batch(dense_features=dense, sparse_features=features, labels=torch.from_numpy(samples.labels))


class BatchFeed(Iterator[Batch]):
    """Batches for the pipeline, from step `first` on; measures how long the training loop waits for them.

    Those of the steps `skipped` are left out. It ends where the samples end, where reading them fails (`failure` is
    what was raised), and where `end` is called.
    """

    def __init__(
        self, samples: Iterator[Samples], schema: Schema, *, first: int, skipped: Set[int] = frozenset(), pinned: bool
    ) -> None:
        self._samples, self._schema, self._pinned = samples, schema, pinned
        self._skipped, self._next_step = skipped, first
        self._fed: deque[int] = deque()
        self._waited_ms = 0.0
        self.ended = False
        self.failure: Exception | None = None

    def end(self) -> None:
        """Hand out no more batches."""
        self.ended = True

    def __next__(self) -> Batch:
        if self.ended:
            raise StopIteration
        start = time.perf_counter()
        try:
            batch = to_batch(self._next_samples(), self._schema)
        except StopIteration:
            raise
        except Exception as error:
            # To raise here would end this rank alone, in the middle of a step.
            self.failure = error
            self.end()
            raise StopIteration from error
        if self._pinned:
            batch = batch.pin_memory()
        self._waited_ms += (time.perf_counter() - start) * 1e3
        return batch

    def trained(self) -> int:
        """The step whose batch the pipeline has trained next: it takes them ahead, and ends them in the same order."""
        return self._fed.popleft()

    def take_wait_ms(self) -> float:
        """Milliseconds waited since the last call."""
        waited, self._waited_ms = self._waited_ms, 0.0
        return waited

    def _next_samples(self) -> Samples:
        while True:
            samples = next(self._samples)
            step = self._next_step
            self._next_step += 1
            if step not in self._skipped:
                self._fed.append(step)
                return samples
