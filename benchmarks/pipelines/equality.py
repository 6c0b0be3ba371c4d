"""Whether the exact contestants train the same: a short run of each on the same batches, compared with `torch.equal`.

Contestants with the same sharders must agree in every bit; other sharders sum floats in another order.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.pipelines.runners import prepare, sharder_options
from benchmarks.pipelines.scenario import Contestant, Family, Scenario
from benchmarks.pipelines.workload import Stream, Training

STEPS = 10
EXACT_OF_TORCHREC = frozenset({"TrainPipelineBase", "TrainPipelineSparseDist", "TrainPipelineFusedSparseDist"})


def unequal(contestants: Sequence[Contestant], scenario: Scenario, stream: Stream) -> dict[str, tuple[str, ...]]:
    """For each contestant that claims to be exact, the tensors of this rank that differ from those of the first one
    with the same sharders.

    An empty tuple is the proof. The first ones themselves are left out. Every rank calls it at the same point.
    """
    first: dict[tuple[object, ...], dict[str, Tensor]] = {}
    found: dict[str, tuple[str, ...]] = {}
    for contestant in contestants:
        if contestant.family is not Family.OVERLANE and contestant.pipeline not in EXACT_OF_TORCHREC:
            continue
        runner = prepare(contestant, scenario, stream)
        for _ in range(STEPS):
            runner.step()
        if runner.overlane is not None:
            runner.overlane.flush()
        mine = dict(_tensors(runner.training))
        kind = (contestant.precision, *sorted(sharder_options(contestant, scenario).items()))
        theirs = first.setdefault(kind, mine)
        if theirs is mine:
            continue
        assert mine.keys() == theirs.keys()
        found[contestant.name] = tuple(name for name in mine if not torch.equal(mine[name], theirs[name]))
    return found


def _tensors(training: Training) -> Iterator[tuple[str, Tensor]]:
    """All weights and the state of both optimizers, as far as this rank holds them."""
    yield from _flat("model", training.model.state_dict())
    yield from _flat("fused", training.model.fused_optimizer.state_dict())
    yield from _flat("dense", training.optimizer.state_dict())


def _flat(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif hasattr(value, "local_shards"):
        for index, shard in enumerate(value.local_shards()):
            yield f"{name}.{index}", shard.tensor.clone()
    elif isinstance(value, Tensor):
        yield name, value.clone()
