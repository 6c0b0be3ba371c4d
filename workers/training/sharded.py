"""The model over the ranks: sharding plan, DistributedModelParallel, and the two optimizers."""

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import KernelConfig, ParameterConstraints, TopologyFactory, TrainerConfig
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from pipeline import data_parallel_wrapper, sharders
from workers.job import SparseOptimizerSpec, TrainingSpec

_FUSED = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}


@dataclass(frozen=True)
class ShardedModel:
    """The sharded model with its dense optimizer; the tables' optimizer is fused into their backward."""

    module: DistributedModelParallel
    dense_optimizer: KeyedOptimizerWrapper

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


def shard(model: nn.Module, training: TrainingSpec, device: torch.device) -> ShardedModel:
    """Shard the model over the ranks of the default process group; every rank calls it with the same model."""
    kinds = sharders(fused_params=_fused_params(training.sparse_optimizer), use_index_dedup=training.dedup)
    planner = EmbeddingShardingPlanner(
        topology=_topology(device),
        batch_size=training.batch_size,
        storage_reservation=FixedPercentageStorageReservation(percentage=0.15),
        constraints=_constraints(model),
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


def _topology(device: torch.device) -> Topology:
    world_size = dist.get_world_size()
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return TopologyFactory.create_topology(
        TrainerConfig(world_size=world_size, local_world_size=local_world_size),
        kernel_config=KernelConfig(compute_device=device.type),
    )


def _constraints(model: nn.Module) -> dict[str, ParameterConstraints]:
    """Row-wise for every sequence table: the sharding that the prioritized schedule splits into OL and NOL rows."""
    row_wise = ParameterConstraints(
        sharding_types=[ShardingType.ROW_WISE.value], compute_kernels=[EmbeddingComputeKernel.FUSED.value]
    )
    collections = [module for module in model.modules() if isinstance(module, EmbeddingCollection)]
    return {config.name: row_wise for module in collections for config in module.embedding_configs()}


def _fused_params(spec: SparseOptimizerSpec) -> dict[str, Any]:
    return {"optimizer": _FUSED[spec.name], "learning_rate": spec.lr}
