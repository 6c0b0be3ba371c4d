"""The checks of TorchRec's `test_pec_embedding.py`: the sharded module on two ranks whose ids cross the shards."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.pec_embedding import ShardedPECEmbeddingCollection
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection

from pipeline import sharders
from pipeline.report import Partition
from tests.integration.pipeline.reference import Batch
from tests.integration.pipeline.torchrec_pec.models import (
    DIM,
    ONE_PEC,
    TWO_TABLES,
    Outcome,
    Pipe,
    Training,
    batch,
    build,
    train_pipelined,
    train_plainly,
)
from tests.integration.pipeline.torchrec_pec.watching import Watch
from tests.ranks import RankPool

# Two samples per rank and three batches. In every batch each rank asks both shards of both tables for rows; two
# consecutive batches share rows of both tables, some within a rank and some between the ranks.
CROSSING = (
    (
        batch(feature_0=[[3, 12], [5]], feature_1=[[0], [6, 2]]),
        batch(feature_0=[[3, 9], [1]], feature_1=[[0], [7, 1]]),
        batch(feature_0=[[13, 3], [1]], feature_1=[[1], [5, 4]]),
    ),
    (
        batch(feature_0=[[2, 11], [6]], feature_1=[[5], [3, 7]]),
        batch(feature_0=[[2, 13], [5]], feature_1=[[5], [1, 6]]),
        batch(feature_0=[[2, 15], [5]], feature_1=[[6], [0, 5]]),
    ),
)
# Every id lives on the second rank: rows 8-15 of the first table, rows 4-7 of the second.
ONE_SHARD = (
    (
        batch(feature_0=[[10, 11], []], feature_1=[[6], [7]]),
        batch(feature_0=[[10], [13]], feature_1=[[7, 4], []]),
    ),
    (
        batch(feature_0=[[14], [15]], feature_1=[[], [4, 5]]),
        batch(feature_0=[[14, 9], []], feature_1=[[5], [6]]),
    ),
)
STANDING_STILL = Training(ONE_PEC, CROSSING, learning_rate=0.0)
CROSS_SHARD = Training(ONE_PEC, CROSSING)
across_and_one_sided = pytest.mark.parametrize(
    "batches", [CROSSING, ONE_SHARD], ids=["across shards", "one shard gets nothing"]
)


@dataclass(frozen=True)
class Place:
    """Where an id stands: the feature, and its place among all ids of the batch in the order of the features."""

    feature: str
    row: int


def places(of: Batch) -> list[Place]:
    """A batch's ids in trainer order."""
    return [Place(name, row) for name, jagged in of.ids.to_dict().items() for row in jagged.values().tolist()]


def shared_places(training: Training, rank: int, step: int, other: int) -> set[int]:
    """Worked out by hand: the places of a rank's batch whose rows any rank uses in the other batch."""
    if not 0 <= other < len(training.batches[0]):
        return set()
    used = {place for own in training.batches for place in places(own[other])}
    return {number for number, place in enumerate(places(training.batches[rank][step])) if place in used}


def test_the_sharder_of_the_wrapper() -> None:
    """Answers PECEmbeddingCollectionSharderTest: test_sharding_types_rw_only, test_shardable_parameters."""
    [own] = [each for each in sharders() if each.module_type is PECEmbeddingCollection]
    tables = [
        EmbeddingConfig(name=each.name, num_embeddings=each.rows, embedding_dim=DIM, feature_names=list(each.features))
        for each in TWO_TABLES
    ]
    wrapper = PECEmbeddingCollection(EmbeddingCollection(tables=tables, device=torch.device("cpu")))
    assert own.sharding_types("cuda") == own.sharding_types("cpu") == [ShardingType.ROW_WISE.value]
    shapes = {name: tuple(parameter.shape) for name, parameter in own.shardable_parameters(wrapper).items()}
    assert shapes == {"table_0": (16, DIM), "table_1": (8, DIM)}


def use_the_wrapper(device: torch.device) -> dict[str, object]:
    model, _ = build(CROSS_SHARD, device)
    assert isinstance(model.module.pec, ShardedPECEmbeddingCollection)
    before, names = sorted(model.state_dict()), []
    twice = replace(CROSS_SHARD, batches=tuple((own[0], own[0]) for own in CROSSING))

    def watch(pipe: Pipe) -> None:
        names.append(dict(pipe.prioritized))

    found = train_pipelined(twice, device, watch=watch)
    return {
        "prioritized": [list(each) for each in names],
        "names": (before, sorted(found.names)),
        "differences": found.differs_from(train_plainly(twice, device)),
    }


def test_the_wrapper_is_sharded_prioritized_and_keeps_its_names(ranks: RankPool) -> None:
    """Answers ShardedPECEmbeddingCollectionTest.test_sharding_rw: the same batch twice, so that all of it overlaps.

    Unlike TorchRec's pipeline, which wraps modules, the state dict keeps its names.
    """
    tables = [f"pec._embedding_collection.embeddings.{table.name}.weight" for table in TWO_TABLES]
    dense = ["over.mix.weight", "over.mix.bias", "over.last.weight", "over.last.bias"]
    for found in ranks.run(2, use_the_wrapper):
        assert found == {"prioritized": [["pec"]], "names": (sorted([*tables, *dense]),) * 2, "differences": []}


def travel(device: torch.device, training: Training) -> dict[str, list[str]]:
    """Compares, per batch, what travels as OL and as NOL with what is worked out by hand."""
    watch, rank = Watch(), dist.get_rank()
    train_pipelined(training, device, watch=watch)
    faults: dict[str, list[str]] = {"forward": [], "backward": []}
    for step, own in enumerate(training.own_batches):
        everything = set(range(len(places(own))))
        for side, expected, ol, nol in (
            (
                "forward",
                shared_places(training, rank, step, step - 1),
                watch.places(step, Partition.OL),
                watch.places(step, Partition.NOL),
            ),
            (
                "backward",
                shared_places(training, rank, step, step + 1),
                watch.gradient_places(step, Partition.OL) or [],
                watch.gradient_places(step, Partition.NOL),
            ),
        ):
            if nol is None:
                nol = sorted(everything)
            if set(ol) != expected or sorted([*ol, *nol]) != sorted(everything):
                faults[side].append(f"batch {step}: expected {sorted(expected)}, OL {ol}, NOL {nol}")
    return faults


def test_each_id_travels_once_and_in_the_right_part(ranks: RankPool) -> None:
    """Answers ShardedPECEmbeddingCollectionTest: test_overlap_dist_forward_permute,
    test_overlap_dist_backward_permutes.

    TorchRec compares its permutations number by number. They are inner matters; what they must do is checked here: OL
    and NOL together are every place once, and OL are the places whose rows any rank uses in the neighbouring batch.
    """
    assert all(0 < len(shared_places(CROSS_SHARD, rank, step, step - 1)) < 6 for rank in (0, 1) for step in (1, 2))
    for found in ranks.run(2, travel, training=CROSS_SHARD):
        assert found == {"forward": [], "backward": []}


def rows_that_arrive(device: torch.device, training: Training) -> list[str]:
    """With a learning rate of zero every row keeps its first value, so arrivals can be compared with the tables."""
    weights = dict(_whole_tables(training, device))
    watch = Watch()
    found = train_pipelined(training, device, watch=watch)
    faults = {}
    for step, own in enumerate(training.own_batches):
        expected = torch.stack([weights[place.feature][place.row] for place in places(own)])
        for part in Partition:
            arrived = watch.embeddings(step, part)
            faults[f"batch {step}: {part}"] = torch.equal(arrived, expected[watch.places(step, part)])
        for name, jagged in own.ids.to_dict().items():
            merged = found.outputs[step][name]
            faults[f"batch {step}: merged {name}"] = torch.equal(merged, weights[name][jagged.values()])
    return [name for name, equal in faults.items() if not equal]


def _whole_tables(training: Training, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """The unsharded weights by feature, `[rows, dim]`."""
    model, _ = build(training, device)
    shards = {name: value.local_shards()[0].tensor for name, value in model.state_dict().items() if "pec" in name}
    for table in TWO_TABLES:
        own = next(shard for name, shard in shards.items() if table.name in name)
        parts: list[torch.Tensor] = [torch.empty(0)] * dist.get_world_size()
        dist.all_gather_object(parts, own)
        yield table.features[0], torch.cat(parts)


@pytest.mark.parametrize("batches", [CROSSING, ONE_SHARD], ids=["across shards", "one shard gets nothing"])
def test_embeddings_arrive_in_both_parts_and_are_merged(
    ranks: RankPool, batches: tuple[tuple[Batch, ...], ...]
) -> None:
    """Answers ShardedPECEmbeddingCollectionTest: test_compute_and_output_dist_in_partition,
    test_merge_partitioned_embeddings, test_single_shard_features.
    """
    for found in ranks.run(2, rows_that_arrive, training=replace(STANDING_STILL, batches=batches)):
        assert found == []


def train_both_ways(device: torch.device, training: Training) -> list[str]:
    return train_pipelined(training, device).differs_from(train_plainly(training, device))


@across_and_one_sided
def test_gradients_reach_their_rows(ranks: RankPool, batches: tuple[tuple[Batch, ...], ...]) -> None:
    """Answers ShardedPECEmbeddingCollectionTest: test_grad_update, bit for bit where TorchRec allows 1e-3, and
    test_single_shard_features.
    """
    training = replace(CROSS_SHARD, batches=batches, learning_rate=0.01)
    for found in ranks.run(2, train_both_ways, training=training):
        assert found == []


def moved(device: torch.device) -> list[str]:
    before, after = (train_plainly(replace(CROSS_SHARD, learning_rate=rate), device) for rate in (0.0, 0.01))
    return Outcome.differs_from(before, after)


def test_the_comparison_can_tell(ranks: RankPool) -> None:
    """Guards the tests above: a learning rate of 0.01 does change the tables."""
    for found in ranks.run(2, moved):
        assert any(name.startswith("model/pec") for name in found)
