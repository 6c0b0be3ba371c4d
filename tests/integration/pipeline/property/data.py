"""The batches of a case, drawn on each rank from the case's seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from tests.integration.pipeline.property.case import Case, Flavour

DENSE = 4
HELD_OUT = 1_000_000  # the step number of batches that are not trained


@dataclass
class Batch(Pipelineable):
    """The same ids twice, without and with weights, and dense features, `[samples, DENSE]`."""

    ids: KeyedJaggedTensor
    weighted: KeyedJaggedTensor
    dense: torch.Tensor
    step: int

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(
            self.ids.to(device, non_blocking),
            self.weighted.to(device, non_blocking),
            self.dense.to(device, non_blocking=non_blocking),
            self.step,
        )

    def record_stream(self, stream: torch.Stream) -> None:
        self.ids.record_stream(stream)
        self.weighted.record_stream(stream)
        self.dense.record_stream(stream)

    def pin_memory(self) -> "Batch":
        return Batch(self.ids.pin_memory(), self.weighted.pin_memory(), self.dense.pin_memory(), self.step)


def batches(case: Case, epoch: int, rank: int) -> Iterator[Batch]:
    """One epoch of a rank."""
    first = sum(case.stream.epochs[:epoch])
    return islice((batch(case, step, rank) for step in range(first, HELD_OUT)), case.batches_of(epoch, rank))


def batch(case: Case, step: int, rank: int) -> Batch:
    """One batch; the same for the same arguments. Some features have no ids, and ids repeat within a sample."""
    stream = case.stream
    drawn_from = 0 if stream.flavour is Flavour.EQUAL else step
    generator = torch.Generator().manual_seed((case.seed * 7919 + drawn_from) * 31 + rank)
    samples = stream.samples[(drawn_from * case.world_size + rank) % len(stream.samples)]
    lengths, values, strides, inverse = [], [], [], []
    for feature in case.features:
        stride = (
            int(torch.randint(min(samples, 1), samples + 1, (), generator=generator)) if stream.variable else samples
        )
        count = torch.randint(stream.min_ids, stream.max_ids + 1, (stride,), generator=generator)
        if stream.min_ids == 0 and torch.rand(1, generator=generator) < 0.1:
            count.zero_()
        lengths.append(count)
        values.append(_ids(case, feature, step, int(count.sum()), generator))
        strides.append(stride)
        inverse.append(torch.randint(0, max(stride, 1), (samples,), generator=generator))
    flat = torch.cat(values)
    weights = torch.rand(flat.numel(), generator=generator)
    return Batch(
        _jagged(case, flat, None, lengths, strides, inverse),
        _jagged(case, flat, weights, lengths, strides, inverse),
        torch.randn(samples, DENSE, generator=generator),
        step,
    )


def _ids(case: Case, feature: str, step: int, count: int, generator: torch.Generator) -> torch.Tensor:
    rows = case.rows_of(feature)
    if case.stream.flavour is not Flavour.DISJOINT or rows < 2:
        return torch.randint(0, rows, (count,), generator=generator)
    odd = step % 2
    return torch.randint(0, (rows + 1 - odd) // 2, (count,), generator=generator) * 2 + odd


def _jagged(
    case: Case,
    values: torch.Tensor,
    weights: torch.Tensor | None,
    lengths: list[torch.Tensor],
    strides: list[int],
    inverse: list[torch.Tensor],
) -> KeyedJaggedTensor:
    keys = list(case.features)
    if not case.stream.variable:
        return KeyedJaggedTensor(
            keys=keys, values=values, weights=weights, lengths=torch.cat(lengths), stride=strides[0]
        )
    return KeyedJaggedTensor(
        keys=keys,
        values=values,
        weights=weights,
        lengths=torch.cat(lengths),
        stride_per_key_per_rank=[[stride] for stride in strides],
        inverse_indices=(keys, torch.stack(inverse)),
    )
