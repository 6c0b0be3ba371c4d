"""Small models and random data, trained twice: by plain synchronous TorchRec and by the pipeline."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from pipeline import TrainPipeline, sharders


@dataclass(frozen=True)
class Table:
    """One embedding table and the features that look it up."""

    rows: int
    features: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A model and a data stream. `collections` are the tables of each EmbeddingCollection."""

    collections: tuple[tuple[Table, ...], ...] = ((Table(50, ("a", "b")), Table(30, ("c",))),)
    dim: int = 8
    optimizer: EmbOptimType = EmbOptimType.EXACT_ROWWISE_ADAGRAD
    learning_rate: float = 0.1
    steps: int = 8
    batch_size: int = 6
    max_ids: int = 4
    seed: int = 0
    uneven_batches: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def features(self) -> list[str]:
        names = [name for tables in self.collections for table in tables for name in table.features]
        return list(dict.fromkeys(names))

    def rows_of(self, feature: str) -> int:
        return min(table.rows for tables in self.collections for table in tables if feature in table.features)


@dataclass
class Batch(Pipelineable):
    """Ids and one dense feature, `[batch_size, 4]`."""

    ids: KeyedJaggedTensor
    dense: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(self.ids.to(device, non_blocking), self.dense.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        self.ids.record_stream(stream)
        self.dense.record_stream(stream)

    def pin_memory(self) -> "Batch":
        return Batch(self.ids.pin_memory(), self.dense.pin_memory())


class Model(nn.Module):
    """Every embedding goes through its own weight, so that a wrong row or a wrong gradient cannot cancel out."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.collections = nn.ModuleList(
            EmbeddingCollection(
                tables=[
                    EmbeddingConfig(
                        name=f"table_{which}_{place}",
                        num_embeddings=table.rows,
                        embedding_dim=case.dim,
                        feature_names=list(table.features),
                    )
                    for place, table in enumerate(tables)
                ],
                device=torch.device("cpu"),
            )
            for which, tables in enumerate(case.collections)
        )
        self.head = Head(case.dim)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head([collection(batch.ids) for collection in self.collections], batch.dense)


class Head(nn.Module):
    """The dense part: a layer on every embedding, a weighted sum per sample, a small MLP."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mix = nn.Linear(dim, dim)
        self.over = nn.Sequential(nn.Linear(dim + 4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, jagged: list[dict[str, JaggedTensor]], dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        samples = dense.shape[0]
        pooled = dense.new_zeros(samples, self.mix.in_features)
        for place, each in enumerate(each for features in jagged for each in features.values()):
            values = torch.tanh(self.mix(each.values())) * (place + 1)
            owner = torch.repeat_interleave(torch.arange(samples, device=dense.device), each.lengths().long())
            pooled = pooled.index_add(0, owner, values)
        logits = self.over(torch.cat([pooled, dense], 1)).squeeze(1)
        return (logits - dense[:, 0]).square().mean(), logits.detach()


def batches(case: Case, rank: int) -> Iterator[Batch]:
    """Random ids, repeated within and across samples; sometimes a feature or a whole rank has none."""
    generator = torch.Generator().manual_seed(1000 * case.seed + rank)
    for step in range(case.steps):
        samples = case.batch_size + (rank + step) % 3 if case.uneven_batches else case.batch_size
        lengths, values = [], []
        for feature in case.features:
            count = torch.randint(0, case.max_ids + 1, (samples,), generator=generator)
            if torch.rand(1, generator=generator) < 0.1:
                count.zero_()
            lengths.append(count)
            values.append(torch.randint(0, case.rows_of(feature), (int(count.sum()),), generator=generator))
        ids = KeyedJaggedTensor(keys=case.features, values=torch.cat(values), lengths=torch.cat(lengths))
        yield Batch(ids, torch.randn(samples, 4, generator=generator))


def build(case: Case, device: torch.device) -> tuple[DistributedModelParallel, torch.optim.Optimizer]:
    """The sharded model, the same on every call and for every schedule."""
    torch.manual_seed(case.seed)
    model = Model(case)
    fused = {"optimizer": case.optimizer, "learning_rate": case.learning_rate}
    own = sharders(fused_params=fused)
    group = dist.group.WORLD
    assert group is not None
    sharded = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(group),
        device=device,
        plan=plan_for(model, case, own),
        sharders=own,
    )
    # Plain calls hand over batches as they come from the loader; the pipeline moves them by itself.
    sharded.register_forward_pre_hook(lambda _, arguments: tuple(batch.to(device) for batch in arguments))
    dense = [parameter for name, parameter in sharded.named_parameters() if "collections" not in name]
    return sharded, torch.optim.Adam(dense, lr=0.01)


def plan_for(model: nn.Module, case: Case, own: list[Any]) -> ShardingPlan:
    """All tables row-wise, by TorchRec's planner."""
    names = [config.name for collection in model.collections for config in collection.embedding_configs()]
    constraints = {name: ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["fused"]) for name in names}
    planner = EmbeddingShardingPlanner(
        topology=Topology(
            world_size=dist.get_world_size(), compute_device="cuda" if dist.get_backend() == "nccl" else "cpu"
        ),
        constraints=constraints,
    )
    group = dist.group.WORLD
    assert group is not None
    return planner.collective_plan(model, own, group)


def train_plainly(case: Case, device: torch.device) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """DistributedModelParallel, forward, backward, step: what everything is compared with."""
    model, optimizer = build(case, device)
    outputs = []
    for batch in batches(case, dist.get_rank()):
        optimizer.zero_grad()
        loss, output = model(batch)
        loss.backward()
        optimizer.step()
        outputs.append(output)
    return state(model, optimizer), outputs


def train_pipelined(
    case: Case, device: torch.device, schedule: str
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """The same by the pipeline."""
    model, optimizer = build(case, device)
    pipe: TrainPipeline[Batch, torch.Tensor] = TrainPipeline(model, optimizer, device, schedule=schedule)
    assert set(pipe.prioritized) == {f"collections.{which}" for which in range(len(case.collections))}
    source, outputs = batches(case, dist.get_rank()), []
    while True:
        try:
            outputs.append(pipe.progress(source))
        except StopIteration:
            break
    pipe.flush()
    return state(model, optimizer), outputs


def state(model: DistributedModelParallel, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Every number that training changed: weights, fused optimizer state, dense optimizer state."""
    found: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        for place, local in enumerate(_local(value)):
            found[f"model/{name}/{place}"] = local.detach().clone()
    for parameter, values in model.fused_optimizer.state_dict()["state"].items():
        for key, value in values.items():
            for place, local in enumerate(_local(value)):
                found[f"fused/{parameter}/{key}/{place}"] = local.detach().clone()
    for index, values in optimizer.state_dict()["state"].items():
        for key, value in values.items():
            found[f"dense/{index}/{key}"] = torch.as_tensor(value).detach().clone()
    return found


def _local(value: Any) -> list[torch.Tensor]:
    if hasattr(value, "local_shards"):
        return [shard.tensor for shard in value.local_shards()]
    return [value] if isinstance(value, torch.Tensor) else []


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """The names whose tensors are not equal bit for bit."""
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]
