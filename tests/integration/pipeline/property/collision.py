"""Managed collision modules, which map arbitrary ids to rows and remember which id has which row."""

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)

from tests.integration.pipeline.property.case import Table


def collision_module(collection: EmbeddingCollection, table: Table, device: torch.device) -> nn.Module:
    """A managed collision module over one table. It never evicts, since fbgemm cannot reset evicted rows on CPU."""
    [config] = collection.embedding_configs()
    managed = ManagedCollisionCollection(
        managed_collision_modules={
            config.name: MCHManagedCollisionModule(
                zch_size=table.rows,
                device=device,
                eviction_interval=1_000,
                eviction_policy=DistanceLFU_EvictionPolicy(),
            )
        },
        embedding_configs=[config],
    )
    return ManagedCollisionEmbeddingCollection(collection, managed, return_remapped_features=False)
