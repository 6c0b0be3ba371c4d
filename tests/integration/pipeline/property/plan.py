"""How the tables of a case are sharded, and how what they send is encoded."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    grid_shard,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleSharder

from pipeline import sharders
from tests.integration.pipeline.property.case import Case, Codec, Module, Sharding, Table


def sharders_of(case: Case) -> list[ModuleSharder[nn.Module]]:
    """The pipeline's sharders, with the case's fused optimizer and codecs for sequences and bags alike."""
    options: dict[str, Any] = {
        "fused_params": {
            "optimizer": case.fused.optimizer,
            "learning_rate": case.fused.rates[0],
            **({"weight_decay": case.fused.weight_decay} if case.fused.weight_decay else {}),
        }
    }
    if (case.forward_codec, case.backward_codec) != (Codec.NONE, Codec.NONE):
        options["qcomm_codecs_registry"] = get_qcomm_codecs_registry(
            QCommsConfig(
                forward_precision=_precision(case.forward_codec), backward_precision=_precision(case.backward_codec)
            )
        )
    own: list[ModuleSharder[nn.Module]] = [
        EmbeddingBagCollectionSharder(**options),
        ManagedCollisionEmbeddingCollectionSharder(ec_sharder=EmbeddingCollectionSharder(**options)),
    ]
    taken = {each.module_type for each in own}
    theirs = sharders(**options, use_index_dedup=case.dedup)
    return [*own, *(each for each in theirs if each.module_type not in taken)]


def _precision(codec: Codec) -> CommType:
    return CommType.FP32 if codec is Codec.NONE else CommType[codec.name]


def plan_of(
    module: Module, unsharded: nn.Module, own: list[ModuleSharder[nn.Module]], device: torch.device
) -> EmbeddingModuleShardingPlan:
    """The plan of one module, table by table. Table i of a module starts on rank i, and columns go on from there."""
    [sharder] = [each for each in own if each.module_type is type(unsharded)]
    parameters = sharder.shardable_parameters(unsharded)
    ranks = dist.get_world_size()
    plan = construct_module_sharding_plan(
        unsharded,
        {
            name: _placement(table, place % ranks, ranks)
            for place, (name, table) in enumerate(zip(parameters, module.tables, strict=True))
        },
        sharder,
        local_size=ranks,
        world_size=ranks,
        device_type=device.type,
    )
    for table, placed in zip(module.tables, plan.values(), strict=True):
        if table.sharding is not Sharding.DATA_PARALLEL:
            placed.compute_kernel = EmbeddingComputeKernel.FUSED.value
    return plan


def _placement(table: Table, first: int, ranks: int) -> Callable[..., Any]:
    match table.sharding:
        case Sharding.ROW_WISE:
            return row_wise()
        case Sharding.TABLE_WISE:
            return table_wise(rank=first)
        case Sharding.COLUMN_WISE:
            return column_wise(ranks=[(first + column) % ranks for column in range(table.dim // 4)])
        case Sharding.DATA_PARALLEL:
            return data_parallel()
        case Sharding.TABLE_ROW_WISE:
            return table_row_wise(host_index=0)
        case Sharding.GRID:
            return grid_shard(host_indexes=[0])
