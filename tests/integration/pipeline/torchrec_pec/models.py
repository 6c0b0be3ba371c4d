"""Models with PEC wrappers, plain collections and pooled tables, and small batches written out by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from pipeline import TrainPipeline, sharders
from tests.integration.pipeline.reference import Batch, differences, state

DIM = 8
Samples = Sequence[Sequence[int]]


class Kind(Enum):
    """What holds the tables of a module."""

    PEC = "TorchRec's PEC wrapper around an EmbeddingCollection"
    PLAIN = "an EmbeddingCollection"
    POOLED = "an EmbeddingBagCollection"


@dataclass(frozen=True)
class Table:
    """A table and the features that look it up."""

    name: str
    rows: int
    features: tuple[str, ...]


@dataclass(frozen=True)
class Module:
    """One embedding module of a model, and how its tables are sharded."""

    name: str
    kind: Kind
    tables: tuple[Table, ...]
    sharding: str = "row_wise"


# Sharded row-wise over two ranks: rows 0-7 and 8-15 of the first, 0-3 and 4-7 of the second.
TWO_TABLES = (Table("table_0", 16, ("feature_0",)), Table("table_1", 8, ("feature_1",)))
ONE_PEC = (Module("pec", Kind.PEC, TWO_TABLES),)


@dataclass(frozen=True)
class Training:
    """A model, its fused optimizer, and the batches of each rank."""

    modules: tuple[Module, ...]
    batches: tuple[tuple[Batch, ...], ...]
    optimizer: EmbOptimType = EmbOptimType.EXACT_SGD
    learning_rate: float = 0.1

    @property
    def own_batches(self) -> tuple[Batch, ...]:
        return self.batches[dist.get_rank()]


def batch(*, weighted: bool = False, **features: Samples) -> Batch:
    """A batch from its ids by feature and sample. `weighted` gives every id a weight."""
    samples = len(next(iter(features.values())))
    lengths = [len(ids) for each in features.values() for ids in each]
    values = torch.tensor([number for each in features.values() for ids in each for number in ids], dtype=torch.int64)
    weights = torch.linspace(0.5, 1.5, values.numel()) if weighted else None
    ids = KeyedJaggedTensor(keys=list(features), values=values, lengths=torch.tensor(lengths), weights=weights)
    return Batch(ids, torch.linspace(-1, 1, 4 * samples).view(samples, 4))


class Model(nn.Module):
    """The embedding modules by name, and a dense part."""

    def __init__(self, modules: tuple[Module, ...]) -> None:
        super().__init__()
        for module in modules:
            setattr(self, module.name, _embeddings(module))
        self._names = [module.name for module in modules]
        self.over = Over([module.kind is Kind.POOLED for module in modules])

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.over([getattr(self, name)(batch.ids) for name in self._names], batch.dense)


class Over(nn.Module):
    """Every embedding through a layer of its own place. The output is the prediction and each feature's embeddings."""

    def __init__(self, pooled: list[bool]) -> None:
        super().__init__()
        self._pooled = pooled
        self.mix = nn.Linear(DIM, DIM)
        self.last = nn.Linear(DIM + 4, 1)

    def forward(self, found: list[Any], dense: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        pooled, samples = dense.new_zeros(len(dense), DIM), torch.arange(len(dense), device=dense.device)
        seen: dict[str, Tensor] = {}
        for one_per_sample, embeddings in zip(self._pooled, found, strict=True):
            for name, each in (embeddings.to_dict() if one_per_sample else embeddings).items():
                values = each if one_per_sample else each.values()
                lengths = torch.ones_like(samples) if one_per_sample else each.lengths().long()
                owner = samples.repeat_interleave(lengths)
                pooled = pooled.index_add(0, owner, torch.tanh(self.mix(values)) * (len(seen) + 1) / 20)
                seen[name] = values.detach().clone()
        prediction = self.last(torch.cat([pooled, dense], 1)).squeeze(1)
        return (prediction - dense[:, 0]).square().mean(), {"prediction": prediction.detach(), **seen}


def _embeddings(module: Module) -> nn.Module:
    shared = [
        {"name": each.name, "num_embeddings": each.rows, "embedding_dim": DIM, "feature_names": list(each.features)}
        for each in module.tables
    ]
    device = torch.device("cpu")
    if module.kind is Kind.POOLED:
        return EmbeddingBagCollection(tables=[EmbeddingBagConfig(**each) for each in shared], device=device)
    collection = EmbeddingCollection(tables=[EmbeddingConfig(**each) for each in shared], device=device)
    return PECEmbeddingCollection(collection) if module.kind is Kind.PEC else collection


def build(training: Training, device: torch.device) -> tuple[DistributedModelParallel, torch.optim.Optimizer]:
    """The sharded model, the same on every call."""
    torch.manual_seed(7)
    model = Model(training.modules)
    own = sharders(fused_params={"optimizer": training.optimizer, "learning_rate": training.learning_rate})
    constraints = {
        table.name: ParameterConstraints(sharding_types=[module.sharding])
        for module in training.modules
        for table in module.tables
    }
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=dist.get_world_size(), compute_device=device.type), constraints=constraints
    )
    group = dist.group.WORLD
    assert group is not None
    plan = planner.collective_plan(model, own, group)
    env = ShardingEnv.from_process_group(group)
    sharded = DistributedModelParallel(model, env=env, device=device, plan=plan, sharders=own)
    return sharded, torch.optim.SGD(sharded.module.over.parameters(), lr=0.1)


Pipe = TrainPipeline[Batch, dict[str, Tensor]]


@dataclass(frozen=True)
class Outcome:
    """What a training ends with on one rank."""

    outputs: list[dict[str, Tensor]]
    numbers: dict[str, Tensor]
    names: list[str]

    def differs_from(self, other: "Outcome") -> list[str]:
        assert len(self.outputs) == len(other.outputs)
        outputs = [
            f"step {step}: {name}"
            for step, (one, another) in enumerate(zip(self.outputs, other.outputs, strict=True))
            for name in one.keys() | another.keys()
            if not torch.equal(one[name], another[name])
        ]
        return outputs + differences(self.numbers, other.numbers) + sorted({*self.names} ^ {*other.names})


def train_plainly(training: Training, device: torch.device) -> Outcome:
    model, optimizer = build(training, device)
    outputs = []
    for each in training.own_batches:
        optimizer.zero_grad()
        loss, output = model(each.to(device))
        loss.backward()
        optimizer.step()
        outputs.append(output)
    return Outcome(outputs, state(model, optimizer), list(model.state_dict()))


def train_pipelined(
    training: Training,
    device: torch.device,
    schedule: str = "prioritized",
    watch: Callable[[Pipe], Any] = lambda pipe: None,
) -> Outcome:
    """`watch` sees the pipeline before its first step."""
    model, optimizer = build(training, device)
    pipe: Pipe = TrainPipeline(model, optimizer, device, schedule=schedule)
    watch(pipe)
    source = iter(training.own_batches)
    outputs = [pipe.progress(source) for _ in training.own_batches]
    pipe.flush()
    return Outcome(outputs, state(model, optimizer), list(model.state_dict()))
