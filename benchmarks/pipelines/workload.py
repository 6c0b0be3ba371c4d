"""The models and batches that every contestant trains, each on a copy of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torchrec.datasets.utils import Batch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ModuleSharder, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from benchmarks.pipelines.scenario import Scenario, Workload
from workers.job import DataSpec, ModelSpec
from workers.models import build_model
from workers.sources import open_source
from workers.sources.schema import Samples, Schema
from workers.training.batches import to_batch

DIM, ROWS, IDS_PER_SAMPLE, TABLES = 128, 300_000, 8, 2
DENSE_LR = 0.01
SEED = 0
# Batches are made beforehand, and come again in a circle that is long against a block.
BATCHES = 60


@dataclass(frozen=True)
class Stream:
    """One rank's batches, made beforehand. Every call of `endless` begins anew."""

    schema: Schema
    samples: Sequence[Samples]

    @classmethod
    def of(cls, scenario: Scenario) -> "Stream":
        source = open_source(_data(scenario))
        rank, ranks = dist.get_rank(), dist.get_world_size()
        epochs = -(-BATCHES // source.steps(ranks, scenario.batch_size, 1))
        made = source.train_batches(rank, ranks, scenario.batch_size, epochs, SEED, 0)
        samples = [samples for samples, _ in zip(made, range(BATCHES), strict=False)]
        return cls(source.schema, samples)

    def endless(self) -> Iterator[Batch]:
        """A new `Batch` each time, since TorchRec keeps what it works out with a batch."""
        return (to_batch(samples, self.schema) for samples in cycle(self.samples))


class Tower(nn.Module):
    """A small network over every looked-up row, so that compute weighs as much as communication; hardly any weights."""

    def __init__(self, schema: Schema, hidden: int) -> None:
        super().__init__()
        self.embeddings = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=table.name,
                    embedding_dim=DIM,
                    num_embeddings=table.rows,
                    feature_names=schema.features_of(table.name),
                )
                for table in schema.tables
            ],
            device=torch.device("meta"),
        )
        self.head = TowerHead([feature.name for feature in schema.features], hidden)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and detached loss of a batch."""
        loss: Tensor = self.head(self.embeddings(batch.sparse_features), batch.labels)
        return loss, loss.detach()


class TowerHead(nn.Module):
    """From looked-up rows to a loss; one tower for each feature."""

    def __init__(self, features: Sequence[str], hidden: int) -> None:
        super().__init__()
        self.towers = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(DIM, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
                for name in features
            }
        )
        self.logit = nn.Linear(len(features) * hidden, 1)

    def forward(self, rows: Any, labels: Tensor) -> Tensor:
        """`rows` by feature, `[samples * IDS_PER_SAMPLE, DIM]`; `labels` `[samples]`."""
        pooled = [
            tower(rows[name].values()).view(len(labels), IDS_PER_SAMPLE, -1).mean(1)
            for name, tower in self.towers.items()
        ]
        return functional.binary_cross_entropy_with_logits(self.logit(torch.cat(pooled, 1)).squeeze(1), labels)


@dataclass(frozen=True)
class Training:
    """A sharded model with its dense optimizer; the tables' optimizer is fused into their backward."""

    model: DistributedModelParallel
    optimizer: KeyedOptimizerWrapper


def build(scenario: Scenario, schema: Schema, sharders: list[ModuleSharder[nn.Module]], wrap: Any = None) -> Training:
    """The scenario's model, sharded row-wise, with the same weights each time. `wrap` puts its collection into another.

    Every rank calls it at the same point.
    """
    device = torch.device("cpu")
    torch.manual_seed(SEED)
    model = _model(scenario, schema)
    plan = construct_module_sharding_plan(
        model.embeddings,
        {table.name: row_wise(compute_kernel="fused") for table in schema.tables},
        sharder=next(each for each in sharders if each.module_type is EmbeddingCollection),
        local_size=1,
        world_size=dist.get_world_size(),
        device_type=device.type,
    )
    if wrap is not None:
        model.embeddings = wrap(model.embeddings)
    # Shards are filled here. A seed of its own keeps two ranks from filling theirs alike.
    torch.manual_seed(SEED + 1 + dist.get_rank())
    module = DistributedModelParallel(
        model, device=device, plan=ShardingPlan(plan={"embeddings": plan}), sharders=sharders
    )
    dense = dict(in_backward_optimizer_filter(module.named_parameters()))
    return Training(module, KeyedOptimizerWrapper(dense, lambda given: torch.optim.Adam(given, lr=DENSE_LR)))


def _model(scenario: Scenario, schema: Schema) -> Any:
    if scenario.workload is Workload.TOWER:
        return Tower(schema, scenario.hidden)
    return build_model(ModelSpec(), schema)


def _data(scenario: Scenario) -> DataSpec:
    if scenario.workload is Workload.MOVIELENS:
        return DataSpec()
    params = {
        "samples": BATCHES * scenario.batch_size * scenario.nodes,
        "features": TABLES,
        "rows": ROWS,
        "ids_per_sample": IDS_PER_SAMPLE,
        "zipf": scenario.zipf,
        "id_overlap": scenario.id_overlap,
    }
    return DataSpec(source="synthetic", params=params)
