"""The model over the ranks: sharding plan, DistributedModelParallel, and the two optimizers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import KernelConfig, ParameterConstraints, TopologyFactory, TrainerConfig
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleSharder
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from pipeline import data_parallel_wrapper, sharders
from workers.job import InvalidJob, Sharding, SparseOptimizerSpec, TrainingSpec
from workers.reports import ShardedTable

_FUSED = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}


@dataclass(frozen=True)
class ShardedModel:
    """The sharded model with its dense optimizer; the tables' optimizer is fused into their backward."""

    module: DistributedModelParallel
    dense_optimizer: KeyedOptimizerWrapper

    @property
    def tables(self) -> tuple[ShardedTable, ...]:
        """The sharding plan. What is replicated on every rank belongs to the dense part and is left out."""
        assert self.module.plan is not None
        found = []
        for path, module in self.module.plan.plan.items():
            for name, parameter in cast(EmbeddingModuleShardingPlan, module).items():
                spec = parameter.sharding_spec
                if not isinstance(spec, EnumerableShardingSpec):
                    continue
                rows, dim = (
                    max(shard.shard_offsets[axis] + shard.shard_sizes[axis] for shard in spec.shards) for axis in (0, 1)
                )
                found.append(
                    ShardedTable(
                        name=name,
                        module=path,
                        rows=rows,
                        dim=dim,
                        sharding=parameter.sharding_type,
                        ranks=tuple(parameter.ranks or ()),
                    )
                )
        return tuple(found)

    def state(self) -> dict[str, Any]:
        """Everything that training changes, sharded, under the names of the unsharded model."""
        return {
            "model": self.module.state_dict(),
            "dense_optimizer": self.dense_optimizer.state_dict(),
            "fused_optimizer": self.module.fused_optimizer.state_dict(),
        }

    def empty_state(self) -> dict[str, Any]:
        """The state to read a checkpoint into. Adam makes its state with the first step, so this takes one of zeros."""
        self.dense_optimizer.init_state()
        return self.state()

    def load(self, state: dict[str, Any]) -> None:
        """Take over a state that was read from a checkpoint."""
        self.module.load_state_dict(state["model"])
        self.dense_optimizer.load_state_dict(state["dense_optimizer"])
        self.module.fused_optimizer.load_state_dict(state["fused_optimizer"])


def shard(
    model: nn.Module, training: TrainingSpec, device: torch.device, sharding: Mapping[str, Sharding] | None = None
) -> ShardedModel:
    """Shard the model over the ranks of the default process group; every rank calls it with the same model.

    `sharding` says how to cut which table. Raises `InvalidJob` if it names a table that the model does not have.
    """
    kinds = _sharders(training)
    planner = EmbeddingShardingPlanner(
        topology=_topology(device),
        batch_size=training.batch_size,
        storage_reservation=FixedPercentageStorageReservation(percentage=0.15),
        constraints=_constraints(model, sharding or {}),
        debug=False,
    )
    plan = planner.collective_plan(model, kinds, dist.group.WORLD)
    # Shards on the meta device are filled here. A seed of its own keeps two ranks from filling theirs alike.
    torch.manual_seed(training.seed + 1 + dist.get_rank())
    module = DistributedModelParallel(
        model, device=device, plan=plan, sharders=kinds, data_parallel_wrapper=data_parallel_wrapper(model)
    )
    dense = dict(in_backward_optimizer_filter(module.named_parameters()))
    optimizer = KeyedOptimizerWrapper(dense, lambda parameters: torch.optim.Adam(parameters, lr=training.dense_lr))
    return ShardedModel(module, optimizer)


def _sharders(training: TrainingSpec) -> list[ModuleSharder[nn.Module]]:
    """Those of the pipeline; pooled tables have the same fused optimizer as sequence tables."""
    fused = _fused_params(training.sparse_optimizer)
    found = sharders(fused_params=fused, use_index_dedup=training.dedup)
    others = [each for each in found if each.module_type is not EmbeddingBagCollection]
    return [*others, EmbeddingBagCollectionSharder(fused_params=fused)]


def _topology(device: torch.device) -> Topology:
    world_size = dist.get_world_size()
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return TopologyFactory.create_topology(
        TrainerConfig(world_size=world_size, local_world_size=local_world_size),
        kernel_config=KernelConfig(compute_device=device.type),
    )


def _constraints(model: nn.Module, asked: Mapping[str, Sharding]) -> dict[str, ParameterConstraints]:
    """What was asked for. Otherwise row-wise for sequence tables, which spreads OL and NOL rows over all ranks, and for
    pooled tables what the planner finds best. The optimizer of all of them is the fused one, and not the dense one.
    """
    sequences = _constraint(Sharding.ROW_WISE)
    pooled = _constraint(Sharding.TABLE_WISE, Sharding.ROW_WISE)
    found: dict[str, ParameterConstraints] = {}
    for module in model.modules():
        if isinstance(module, EmbeddingCollection):
            found |= {config.name: sequences for config in module.embedding_configs()}
        elif isinstance(module, EmbeddingBagCollection):
            found |= {config.name: pooled for config in module.embedding_bag_configs()}
    unknown = [name for name in asked if name not in found]
    if unknown:
        raise InvalidJob([f"model.sharding.{unknown[0]}: no such table; the model has {', '.join(sorted(found))}"])
    return found | {name: _constraint(way) for name, way in asked.items()}


def _constraint(*ways: Sharding) -> ParameterConstraints:
    return ParameterConstraints(
        sharding_types=[way.value for way in ways], compute_kernels=[EmbeddingComputeKernel.FUSED.value]
    )


def _fused_params(spec: SparseOptimizerSpec) -> dict[str, Any]:
    return {"optimizer": _FUSED[spec.name], "learning_rate": spec.lr}
