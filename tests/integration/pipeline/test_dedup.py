"""Index dedup: every schedule gives the weights of synchronous training with the same sharders, bit for bit; and where
sums of floats are exact, those of training without dedup.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ModuleSharder, ShardingEnv
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import JaggedTensor

from pipeline import StepReport, TrainPipeline, sharders
from tests.integration.pipeline.reference import Batch, Case, Model, Table, batches, differences, state
from tests.ranks import RankPool

SCHEDULES = ["sync", "sparse_dist", "prioritized"]
SGD, ADAGRAD = EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ROWWISE_ADAGRAD
TWO_TABLES = ((Table(20, ("a", "b", "d")), Table(9, ("c",))),)
TWO_COLLECTIONS = (*TWO_TABLES, (Table(12, ("e", "a")), Table(15, ("f", "g"))))


@dataclass(frozen=True)
class Dedup:
    """A case whose tables are sharded in the given ways in turn, with or without index dedup."""

    case: Case
    shardings: tuple[str, ...] = ("row_wise",)
    dedup: bool = True
    exact_sums: bool = False


CASES = {
    "several tables, several features on one": Dedup(Case(TWO_TABLES)),
    "sgd": Dedup(Case(TWO_TABLES, optimizer=SGD)),
    "two collections that share a feature": Dedup(Case(TWO_COLLECTIONS, dim=4)),
    "every row many times": Dedup(Case(((Table(5, ("a", "b")), Table(4, ("c", "d"))),), max_ids=9)),
    "hardly any row twice": Dedup(Case(((Table(5000, ("a", "b")), Table(7001, ("c",))),))),
    "table-wise": Dedup(Case(TWO_COLLECTIONS), ("table_wise",)),
    "column-wise": Dedup(Case(TWO_TABLES, dim=16), ("column_wise",)),
    "three ways in one collection": Dedup(
        Case(((*TWO_TABLES[0], Table(14, ("e", "f"))),), dim=16), ("row_wise", "table_wise", "column_wise")
    ),
    "data-parallel beside row-wise": Dedup(Case(TWO_TABLES, max_ids=1), ("row_wise", "data_parallel")),
    "batch sizes that differ between ranks": Dedup(Case(TWO_TABLES, uneven_batches=True)),
    "a single batch": Dedup(Case(TWO_TABLES, steps=1)),
}


class Countable(Model):
    """The gradient of an embedding is a small whole number that differs from place to place, so sums are exact."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.head = CountableHead()


class CountableHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, jagged: list[dict[str, JaggedTensor]], dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = (self.scale * dense).sum()
        seen = []
        for place, each in enumerate(each for features in jagged for each in features.values()):
            numbers = (torch.arange(len(each.values()), device=dense.device) * 3 + place) % 7 - 2
            loss = loss + (each.values() * numbers.unsqueeze(1)).sum()
            seen.append(each.values().detach().flatten())
        return loss, torch.cat(seen)


def build(setup: Dedup, device: torch.device) -> tuple[DistributedModelParallel, torch.optim.Optimizer]:
    """The sharded model, the same on every call; with exact sums its weights are multiples of 1/64."""
    case = setup.case
    torch.manual_seed(case.seed)
    model = Countable(case) if setup.exact_sums else Model(case)
    own = sharders(
        fused_params={"optimizer": case.optimizer, "learning_rate": case.learning_rate}, use_index_dedup=setup.dedup
    )
    sharded = shard(model, setup, own, device)
    if setup.exact_sums:
        with torch.no_grad():
            for value in sharded.state_dict().values():
                for local in getattr(value, "local_shards", list)():
                    local.tensor.copy_((local.tensor * 64).round() / 64)
    dense = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    return sharded, torch.optim.Adam(dense.values(), lr=0.01)


def shard(
    model: nn.Module, setup: Dedup, own: list[ModuleSharder[nn.Module]], device: torch.device
) -> DistributedModelParallel:
    names = [config.name for collection in model.collections for config in collection.embedding_configs()]
    ways = [setup.shardings[place % len(setup.shardings)] for place in range(len(names))]
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=dist.get_world_size(), compute_device=device.type),
        constraints={
            name: ParameterConstraints(
                sharding_types=[way], compute_kernels=["dense" if way == "data_parallel" else "fused"], min_partition=8
            )
            for name, way in zip(names, ways, strict=True)
        },
    )
    group = dist.group.WORLD
    assert group is not None
    plan = planner.collective_plan(model, own, group)
    return DistributedModelParallel(
        model, env=ShardingEnv.from_process_group(group), device=device, plan=plan, sharders=own
    )


Trained = tuple[dict[str, torch.Tensor], list[torch.Tensor]]


def train_plainly(setup: Dedup, device: torch.device) -> Trained:
    """TorchRec's own forward and backward."""
    model, optimizer = build(setup, device)
    outputs = []
    for batch in batches(setup.case, dist.get_rank()):
        optimizer.zero_grad()
        loss, output = model(batch.to(device))
        loss.backward()
        optimizer.step()
        outputs.append(output)
    return state(model, optimizer), outputs


def train_pipelined(setup: Dedup, device: torch.device, schedule: str) -> tuple[Trained, list[StepReport]]:
    """The same by the pipeline, which must prioritize every collection."""
    model, optimizer = build(setup, device)
    pipe: TrainPipeline[Batch, torch.Tensor] = TrainPipeline(model, optimizer, device, schedule=schedule)
    assert set(pipe.prioritized) == {f"collections.{which}" for which in range(len(setup.case.collections))}
    assert pipe.not_prioritized == {}
    assert all(fact.endswith(", index dedup") == setup.dedup for fact in pipe.prioritized.values())
    source, outputs = batches(setup.case, dist.get_rank()), []
    while True:
        try:
            outputs.append(pipe.progress(source))
        except StopIteration:
            break
    pipe.flush()
    return (state(model, optimizer), outputs), pipe.reports(wait=True)


def compared(one: Trained, other: Trained) -> dict[str, Any]:
    return {
        "differences": differences(one[0], other[0]),
        "outputs": len(one[1]) == len(other[1])
        and all(torch.equal(mine, theirs) for mine, theirs in zip(one[1], other[1], strict=True)),
    }


EQUAL = {"differences": [], "outputs": True}


def against_plain(device: torch.device, setup: Dedup, schedule: str) -> dict[str, Any]:
    piped, reports = train_pipelined(setup, device, schedule)
    assert len(reports) == setup.case.steps
    return compared(train_plainly(setup, device), piped)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_bit_identical_to_plain_training_with_dedup(ranks: RankPool, name: str, world_size: int, schedule: str) -> None:
    found = ranks.run(world_size, against_plain, setup=CASES[name], schedule=schedule)
    assert found == [EQUAL] * world_size


def against_no_dedup(device: torch.device, setup: Dedup, schedule: str) -> dict[str, Any]:
    without = train_plainly(replace(setup, dedup=False), device)
    plain = train_plainly(setup, device)
    piped, _ = train_pipelined(setup, device, schedule)
    return {"plain": compared(without, plain), "piped": compared(without, piped)}


@pytest.mark.parametrize("schedule", ["sync", "prioritized"])
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("optimizer", [SGD, ADAGRAD])
@pytest.mark.parametrize(
    "name", ["two collections that share a feature", "every row many times", "three ways in one collection"]
)
def test_where_sums_are_exact_dedup_changes_no_bit(
    ranks: RankPool, name: str, optimizer: EmbOptimType, world_size: int, schedule: str
) -> None:
    """Whole gradients, and powers of two for ranks and rate. A wrong reverse index or a lost gradient would show."""
    setup = replace(
        CASES[name], case=replace(CASES[name].case, optimizer=optimizer, learning_rate=0.125), exact_sums=True
    )
    for found in ranks.run(world_size, against_no_dedup, setup=setup, schedule=schedule):
        assert found == {"plain": EQUAL, "piped": EQUAL}


def without_dedup_in_floats(device: torch.device) -> list[str]:
    setup = CASES["several tables, several features on one"]
    one, _ = train_plainly(setup, device)
    other, _ = train_plainly(replace(setup, dedup=False), device)
    assert all(torch.allclose(one[name], other[name], atol=1e-4) for name in one)
    return differences(one, other)


def test_with_other_numbers_dedup_only_rounds_differently(ranks: RankPool) -> None:
    """Which is why the tests above compare with a synchronous run that has dedup too."""
    assert any(ranks.run(2, without_dedup_in_floats))


def counted(device: torch.device, dedup: bool) -> list[tuple[int, int | None, float | None]]:
    setup = replace(CASES["several tables, several features on one"], dedup=dedup)
    _, reports = train_pipelined(setup, device, "prioritized")
    return [(report.ids, report.overlapped_ids, report.id_overlap) for report in reports]


def expected(rank: int, count: Callable[[list[int]], int]) -> list[tuple[int, int, float | None]]:
    """From the batches themselves: per step the ids of a rank, those whose row any rank used before, their share."""
    case = CASES["several tables, several features on one"].case
    before: list[set[int]] = [set() for _ in case.collections[0]]
    found: list[tuple[int, int, float | None]] = []
    for step in zip(*(batches(case, each) for each in range(2)), strict=True):
        used = [[_ids_of(batch, table) for table in case.collections[0]] for batch in step]
        ids = sum(count(each) for each in used[rank])
        shared = sum(
            count([each for each in mine if each in earlier]) for mine, earlier in zip(used[rank], before, strict=True)
        )
        found.append((ids, shared, shared / ids if ids else None))
        before = [set(one) | set(other) for one, other in zip(*used, strict=True)]
    return found


def _ids_of(batch: Batch, table: Table) -> list[int]:
    return [each for feature in table.features for each in batch.ids[feature].values().tolist()]


@pytest.mark.parametrize(("dedup", "count"), [(True, lambda ids: len(set(ids))), (False, len)])
def test_reports_count_what_travels(ranks: RankPool, dedup: bool, count: Callable[[list[int]], int]) -> None:
    for rank, found in enumerate(ranks.run(2, counted, dedup=dedup)):
        assert found == expected(rank, count)


def with_torchrecs_own_sharder(device: torch.device) -> dict[str, str]:
    setup = CASES["sgd"]
    own = [EmbeddingCollectionSharder(fused_params={"optimizer": SGD, "learning_rate": 0.1}, use_index_dedup=True)]
    model = shard(Model(setup.case), setup, own, device)
    dense = [parameter for name, parameter in model.named_parameters() if "collections" not in name]
    pipe: TrainPipeline[Batch, torch.Tensor] = TrainPipeline(model, torch.optim.Adam(dense), device)
    pipe.progress(batches(setup.case, dist.get_rank()))
    return pipe.prioritized


def test_a_model_with_torchrecs_own_sharder_is_prioritized_too(ranks: RankPool) -> None:
    for prioritized in ranks.run(2, with_torchrecs_own_sharder):
        assert prioritized == {"collections.0": "row_wise, 2 table(s), dim 8, index dedup"}
