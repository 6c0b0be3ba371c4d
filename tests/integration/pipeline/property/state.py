"""Every number that training changed, as tensors that can be compared bit for bit."""

from collections.abc import Iterator
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch.distributed.tensor import DTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import KeyedOptimizer

Tensors = dict[str, torch.Tensor]


def state(model: DistributedModelParallel, optimizer: KeyedOptimizer) -> Tensors:
    """Weights, fused and dense optimizer state, iteration counts."""
    found: Tensors = {}
    for name, value in (
        *_tree("model", model.state_dict()),
        *_tree("fused", model.fused_optimizer.state_dict()),
        *_tree("dense", optimizer.state_dict()),
        *_tree("iterations", _iterations(model)),
    ):
        found[name] = value.detach().clone()
    return found


def differences(plain: Tensors, other: Tensors) -> list[str]:
    """The names whose tensors are not equal bit for bit, or that stand on one side only."""
    one_sided = plain.keys() ^ other.keys()
    return sorted(one_sided) + [
        name for name in plain if name not in one_sided and not torch.equal(plain[name], other[name])
    ]


def _tree(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _tree(f"{name}/{key}", each)
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from _tree(f"{name}/{place}", each)
    elif hasattr(value, "local_shards"):
        yield from _tree(name, [shard.tensor for shard in value.local_shards()])
    elif isinstance(value, DTensor):
        yield name, value.to_local()
    elif isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, int | float):
        yield name, torch.tensor(value)


def _iterations(model: torch.nn.Module) -> list[torch.Tensor]:
    """How often each group of fused tables was updated, which optimizers like Adam correct their bias by."""
    tables = [each for each in model.modules() if isinstance(each, SplitTableBatchedEmbeddingBagsCodegen)]
    return [each.iter for each in tables if "iter" in dict(each.named_buffers())]
