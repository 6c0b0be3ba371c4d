"""The batches and the sharded models that every contestant trains, each on a copy of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.datasets.utils import Batch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ModuleSharder, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from benchmarks.pipelines.models import IDS_PER_SAMPLE, Dlrm, Tower
from benchmarks.pipelines.scenario import Scenario, Workload
from pipeline import data_parallel_wrapper
from workers.job import DataSpec, ModelSpec
from workers.models import build_model
from workers.sources import open_source
from workers.sources.schema import Samples, Schema
from workers.training.batches import to_batch

ROWS = 300_000
# Of the DLRM's, the second half is pooled.
TABLES = {Workload.TOWER: 2, Workload.DLRM: 4}
DENSE_FEATURES = {Workload.TOWER: 0, Workload.DLRM: 13}
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
        made = source.train_batches(rank, ranks, scenario.batch_size, epochs, SEED)
        samples = [samples for samples, _ in zip(made, range(BATCHES), strict=False)]
        return cls(source.schema, samples)

    def endless(self) -> Iterator[Batch]:
        """A new `Batch` each time, since TorchRec keeps what it works out with a batch."""
        return (to_batch(samples, self.schema) for samples in cycle(self.samples))


@dataclass(frozen=True)
class Training:
    """A sharded model with its dense optimizer; the tables' optimizer is fused into their backward."""

    model: DistributedModelParallel
    optimizer: KeyedOptimizerWrapper


def build(scenario: Scenario, schema: Schema, sharders: list[ModuleSharder[nn.Module]], wrap: Any = None) -> Training:
    """The scenario's model with the same weights each time: sequence tables row-wise, pooled ones table-wise. `wrap`
    puts the collection of its sequence tables into another.

    Every rank calls it at the same point.
    """
    device = torch.device("cpu")
    torch.manual_seed(SEED)
    model = _model(scenario, schema)
    collection = next(each for each in sharders if each.module_type is EmbeddingCollection)
    pooled = EmbeddingBagCollectionSharder(fused_params=collection.fused_params)
    plan = {"embeddings": _plan(model.embeddings, collection)}
    if scenario.workload is Workload.DLRM:
        plan["pooled"] = _plan(model.pooled, pooled)
    if wrap is not None:
        model.embeddings = wrap(model.embeddings)
    # Shards are filled here. A seed of its own keeps two ranks from filling theirs alike.
    torch.manual_seed(SEED + 1 + dist.get_rank())
    module = DistributedModelParallel(
        model,
        device=device,
        plan=ShardingPlan(plan=plan),
        sharders=[*(each for each in sharders if each.module_type is not EmbeddingBagCollection), pooled],
        data_parallel_wrapper=data_parallel_wrapper(model),
    )
    dense = dict(in_backward_optimizer_filter(module.named_parameters()))
    return Training(module, KeyedOptimizerWrapper(dense, lambda given: torch.optim.Adam(given, lr=DENSE_LR)))


def _plan(module: EmbeddingCollection | EmbeddingBagCollection, sharder: ModuleSharder[nn.Module]) -> Any:
    ranks = dist.get_world_size()
    if isinstance(module, EmbeddingCollection):
        ways = {config.name: row_wise(compute_kernel="fused") for config in module.embedding_configs()}
    else:
        configs = module.embedding_bag_configs()
        ways = {
            config.name: table_wise(rank=place % ranks, compute_kernel="fused") for place, config in enumerate(configs)
        }
    return construct_module_sharding_plan(
        module, ways, sharder=sharder, local_size=1, world_size=ranks, device_type="cpu"
    )


def _model(scenario: Scenario, schema: Schema) -> Any:
    match scenario.workload:
        case Workload.TOWER:
            return Tower(schema, scenario.hidden)
        case Workload.DLRM:
            return Dlrm(schema, scenario.hidden)
        case Workload.MOVIELENS:
            return build_model(ModelSpec(), schema)


def _data(scenario: Scenario) -> DataSpec:
    if scenario.workload is Workload.MOVIELENS:
        return DataSpec()
    params = {
        "samples": BATCHES * scenario.batch_size * scenario.nodes,
        "features": TABLES[scenario.workload],
        "rows": ROWS,
        "ids_per_sample": IDS_PER_SAMPLE,
        "zipf": scenario.zipf,
        "id_overlap": scenario.id_overlap,
        "dense": DENSE_FEATURES[scenario.workload],
    }
    return DataSpec(source="synthetic", params=params)
