"""The model over the ranks: sharding plan, DistributedModelParallel, and the two optimizers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from pipeline import data_parallel_wrapper
from workers.job import Sharding, TrainingSpec
from workers.reports import ShardedTable
from workers.training.planning import Group, planner, sharded_tables, table_sharders


@dataclass(frozen=True)
class ShardedModel:
    """The sharded model with its dense optimizer; the tables' optimizer is fused into their backward."""

    module: DistributedModelParallel
    dense_optimizer: KeyedOptimizerWrapper

    @property
    def tables(self) -> tuple[ShardedTable, ...]:
        """The sharding plan."""
        assert self.module.plan is not None
        return sharded_tables(self.module.plan)

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
    kinds = table_sharders(training)
    world_size = dist.get_world_size()
    group = Group(world_size, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)), device.type)
    plan = planner(model, training, group, sharding or {}).collective_plan(model, kinds, dist.group.WORLD)
    # Shards on the meta device are filled here. A seed of its own keeps two ranks from filling theirs alike.
    torch.manual_seed(training.seed + 1 + dist.get_rank())
    module = DistributedModelParallel(
        model, device=device, plan=plan, sharders=kinds, data_parallel_wrapper=data_parallel_wrapper(model)
    )
    dense = dict(in_backward_optimizer_filter(module.named_parameters()))
    optimizer = KeyedOptimizerWrapper(dense, lambda parameters: torch.optim.Adam(parameters, lr=training.dense_lr))
    return ShardedModel(module, optimizer)
