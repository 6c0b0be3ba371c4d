"""The sharding plan: which ranks hold which rows of which table. Needs no process group."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import KernelConfig, ParameterConstraints, TopologyFactory, TrainerConfig
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleSharder, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from pipeline import sharders
from workers.job import InvalidJob, Sharding, SparseOptimizerSpec, TrainingSpec
from workers.reports import ShardedTable

_FUSED = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}


@dataclass(frozen=True)
class Group:
    """The ranks that hold the tables: `local_world_size` on each node, on devices of a type, `cpu` or `cuda`.

    `memory_bytes` is what a rank on a CPU has; None where that is not known: TorchRec's default then holds.
    """

    world_size: int
    local_world_size: int
    device_type: str
    memory_bytes: int | None = None

    @property
    def topology(self) -> Topology:
        return TopologyFactory.create_topology(
            TrainerConfig(
                world_size=self.world_size, local_world_size=self.local_world_size, ddr_cap_bytes=self.memory_bytes
            ),
            kernel_config=KernelConfig(compute_device=self.device_type),
        )


def planner(
    model: nn.Module, training: TrainingSpec, group: Group, sharding: Mapping[str, Sharding]
) -> EmbeddingShardingPlanner:
    """TorchRec's planner for the group. `sharding` says how to cut which table.

    Raises `InvalidJob` if it names a table that the model does not have.
    """
    return EmbeddingShardingPlanner(
        topology=group.topology,
        batch_size=training.batch_size,
        storage_reservation=FixedPercentageStorageReservation(percentage=0.15),
        constraints=_constraints(model, sharding),
        debug=False,
    )


def table_sharders(training: TrainingSpec) -> list[ModuleSharder[nn.Module]]:
    """Those of the pipeline; pooled tables have the same fused optimizer as sequence tables."""
    fused = _fused_params(training.sparse_optimizer)
    found = sharders(fused_params=fused, use_index_dedup=training.dedup)
    others = [each for each in found if each.module_type is not EmbeddingBagCollection]
    return [*others, EmbeddingBagCollectionSharder(fused_params=fused)]


def sharded_tables(plan: ShardingPlan) -> tuple[ShardedTable, ...]:
    """What a plan says of each table. What is replicated on every rank belongs to the dense part and is left out."""
    found = []
    for path, module in plan.plan.items():
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


def table_bytes(model: nn.Module) -> int:
    """What the weights of all tables take, as 32-bit floats."""
    return sum(
        config.num_embeddings * config.embedding_dim * 4
        for module in model.modules()
        if isinstance(module, EmbeddingCollection | EmbeddingBagCollection)
        for config in _configs(module)
    )


def _configs(module: EmbeddingCollection | EmbeddingBagCollection) -> list[Any]:
    is_sequence = isinstance(module, EmbeddingCollection)
    return list(module.embedding_configs() if is_sequence else module.embedding_bag_configs())


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
