"""The checks of TorchRec's `test_pec_collision_handlers.py`: which ids two batches share, and how a batch is parted."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from pipeline.exchange import common_rows, select
from pipeline.report import Partition
from tests.integration.pipeline.reference import Batch
from tests.integration.pipeline.torchrec_pec.models import (
    ONE_PEC,
    TWO_TABLES,
    Kind,
    Module,
    Table,
    Training,
    batch,
    train_pipelined,
    train_plainly,
)
from tests.integration.pipeline.torchrec_pec.watching import Watch
from tests.ranks import RankPool


@pytest.mark.parametrize(
    ("previous", "current", "forward", "backward"),
    [
        pytest.param([4, 6], [5, 7, 9], [False] * 3, [False] * 2, id="test_no_overlap"),
        pytest.param([8, 2, 0], [8, 2, 0], [True] * 3, [True] * 3, id="test_full_overlap"),
        pytest.param([8, 2, 0], [8, 2, 6], [True, True, False], [True, True, False], id="test_partial_overlap"),
        pytest.param([5, 6, 7, 8], [9, 7], [False, True], [False, False, True, False], id="test_asymmetric_overlap"),
    ],
)
def test_which_rows_two_batches_share(
    previous: list[int], current: list[int], forward: list[bool], backward: list[bool]
) -> None:
    """Answers BooleanOverlapCheckerTest: test_no_overlap, test_full_overlap, test_partial_overlap,
    test_asymmetric_overlap.
    """
    mask, earlier = common_rows(torch.tensor(current), torch.tensor(previous))
    assert (mask.tolist(), earlier.tolist()) == (forward, backward)


FEATURES = KeyedJaggedTensor(
    keys=["left", "right"], values=torch.tensor([5, 3, 8, 1, 9, 7]), lengths=torch.tensor([0, 2, 3, 1])
)


@pytest.mark.parametrize(
    ("mask", "ol", "nol"),
    [
        pytest.param([0] * 6, ([], [0, 0, 0, 0]), ([5, 3, 8, 1, 9, 7], [0, 2, 3, 1]), id="test_all_nonoverlapped"),
        pytest.param([1] * 6, ([5, 3, 8, 1, 9, 7], [0, 2, 3, 1]), ([], [0, 0, 0, 0]), id="test_all_overlapped"),
        pytest.param(
            [0, 1, 1, 0, 0, 1], ([3, 8, 7], [0, 1, 1, 1]), ([5, 1, 9], [0, 1, 2, 0]), id="test_partial_overlap"
        ),
    ],
)
def test_a_batch_is_parted(mask: list[int], ol: tuple[list[int], list[int]], nol: tuple[list[int], list[int]]) -> None:
    """Answers SplitFeaturesTest: test_all_nonoverlapped, test_all_overlapped, test_partial_overlap,
    test_preserves_keys.
    """
    where = torch.tensor(mask, dtype=torch.bool)
    for part, expected in ((select(FEATURES, where), ol), (select(FEATURES, ~where), nol)):
        assert (part.values().tolist(), part.lengths().tolist()) == expected
        assert part.keys() == FEATURES.keys()


def weighted(device: torch.device) -> list[str]:
    training = Training(
        ONE_PEC,
        (
            (
                batch(feature_0=[[3, 12], [5]], feature_1=[[0], [6, 2]], weighted=True),
                batch(feature_0=[[3, 9], [5]], feature_1=[[], [6, 1]], weighted=True),
                batch(feature_0=[[4], [5, 5]], feature_1=[[6], [1]], weighted=True),
            ),
        ),
    )
    return train_pipelined(training, device).differs_from(train_plainly(training, device))


def test_weighted_ids_train_exactly(ranks: RankPool) -> None:
    """Answers SplitFeaturesTest.test_with_weights: a sequence lookup uses no weights, so parting need not keep them."""
    assert ranks.run(1, weighted) == [[]]


@dataclass(frozen=True)
class Seen:
    """What one rank saw of a few batches as owner; `gradients` are the rows sent as OL and as NOL."""

    rows: list[list[int]]
    forward: list[list[bool]]
    backward: list[list[bool] | None]
    gradients: list[tuple[int, ...]]
    differences: list[str]


def two_batches(device: torch.device, batches: tuple[Batch, ...], tables: tuple[Table, ...]) -> Seen:
    """One rank owns everything, so owner order is the order in which the ids stand in the batch."""
    training = Training((Module("pec", Kind.PEC, tables),), (batches,))
    watch, count = Watch(), len(batches)
    found = train_pipelined(training, device, watch=watch)
    return Seen(
        [watch.rows(each) for each in range(count)],
        [watch.shared_with_previous(each) for each in range(count)],
        [watch.shared_with_next(each) for each in range(count)],
        [
            (watch.gradients_sent(each, Partition.OL), watch.gradients_sent(each, Partition.NOL))
            for each in range(count)
        ],
        found.differs_from(train_plainly(training, device)),
    )


def see(ranks: RankPool, *batches: Batch, tables: tuple[Table, ...] = TWO_TABLES) -> Seen:
    [seen] = ranks.run(1, two_batches, batches=batches, tables=tables)
    assert seen.differences == []
    return seen


def test_the_first_batch_shares_nothing(ranks: RankPool) -> None:
    """Answers RWOverlapHandlerTest.test_first_batch_no_overlap."""
    seen = see(ranks, batch(feature_0=[[6, 7]], feature_1=[[6, 7]]), batch(feature_0=[[6, 7]], feature_1=[[6, 7]]))
    assert seen.forward[0] == [False] * 4


def test_the_last_batch_defers_its_whole_gradient_to_flush(ranks: RankPool) -> None:
    """Answers RWOverlapHandlerTest.test_last_batch_all_ol. Deliberately the other way round: TorchRec calls the last
    batch all OL; here it is all NOL, since no later batch waits for it, and flush applies it.
    """
    seen = see(ranks, batch(feature_0=[[6, 7]], feature_1=[[1, 2]]), batch(feature_0=[[6, 5]], feature_1=[[1, 3]]))
    assert seen.backward[1] is None
    assert seen.gradients == [(2, 2), (0, 4)]


def test_tables_do_not_share_rows(ranks: RankPool) -> None:
    """Answers RWOverlapHandlerTest.test_remap_kjt_values: equal ids of different tables are different rows."""
    seen = see(ranks, batch(feature_0=[[6, 7]], feature_1=[[1, 2]]), batch(feature_0=[[1, 2]], feature_1=[[6, 7]]))
    assert seen.rows == [[6, 7, 17, 18], [1, 2, 22, 23]]
    assert seen.forward[1] == [False] * 4


@dataclass(frozen=True)
class Pair:
    """Two batches and the masks of the second's lookups and the first's gradients."""

    first: dict[str, Any]
    second: dict[str, Any]
    forward: list[int]
    backward: list[int]
    tables: tuple[Table, ...] = TWO_TABLES


PAIRS = {
    "test_second_batch_with_overlap": Pair(
        {"feature_0": [[9, 4]], "feature_1": [[0, 5]]},
        {"feature_0": [[2, 9]], "feature_1": [[5, 3]]},
        [0, 1, 1, 0],
        [1, 0, 0, 1],
    ),
    "test_no_overlap_between_batches": Pair(
        {"feature_0": [[9, 4]], "feature_1": [[0, 5]]},
        {"feature_0": [[0, 5]], "feature_1": [[1, 4]]},
        [0] * 4,
        [0] * 4,
    ),
    "test_full_overlap_between_batches": Pair(
        {"feature_0": [[9, 4]], "feature_1": [[0, 5]]},
        {"feature_0": [[9, 4]], "feature_1": [[0, 5]]},
        [1] * 4,
        [1] * 4,
    ),
    "test_variable_length_features": Pair(
        {"feature_0": [[9], [4, 3, 2]], "feature_1": [[0, 5, 6], [7]]},
        {"feature_0": [[], [3, 1]], "feature_1": [[2, 6], []]},
        [1, 0, 0, 1],
        [0, 0, 1, 0, 0, 0, 1, 0],
    ),
    "test_duplicate_values_in_batch": Pair(
        {"feature_0": [[9, 9]], "feature_1": [[5, 5]]},
        {"feature_0": [[9, 8]], "feature_1": [[6, 5]]},
        [1, 0, 0, 1],
        [1, 1, 1, 1],
    ),
    "test_single_table": Pair({"feature_0": [[9, 4, 3]]}, {"feature_0": [[4, 8]]}, [1, 0], [0, 1, 0], (TWO_TABLES[0],)),
    "test_multiple_features_per_table": Pair(
        {"one": [[9, 4]], "other": [[3, 2]]},
        {"one": [[3]], "other": [[8]]},
        [1, 0],
        [0, 0, 1, 0],
        (Table("table", 16, ("one", "other")),),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_two_batches_share(ranks: RankPool, name: str) -> None:
    """Answers RWOverlapHandlerTest, the tests that the cases are named after."""
    pair = PAIRS[name]
    seen = see(ranks, batch(**pair.first), batch(**pair.second), tables=pair.tables)
    assert seen.forward[1] == [bool(each) for each in pair.forward]
    assert seen.backward[0] == [bool(each) for each in pair.backward]


def test_batches_without_ids(ranks: RankPool) -> None:
    """Answers RWOverlapHandlerTest.test_empty_batch; empty as the first, a middle and the last batch."""
    empty, full = batch(feature_0=[[], []], feature_1=[[], []]), batch(feature_0=[[9], [4]], feature_1=[[], [5]])
    seen = see(ranks, empty, full, empty, full, full, empty)
    assert [seen.forward[each] for each in (0, 2, 5)] == [[], [], []]
    assert seen.forward[1] == [False] * 3
    assert seen.forward[4] == [True] * 3


def named(device: torch.device, sharding: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    training = Training(
        (Module("rows", Kind.PLAIN, TWO_TABLES, sharding),),
        tuple((batch(feature_0=[[9], [4]], feature_1=[[1], [5]]),) * 2 for _ in range(2)),
    )
    names: list[dict[str, str]] = []
    found = train_pipelined(training, device, watch=lambda pipe: names.extend((pipe.prioritized, pipe.not_prioritized)))
    prioritized, not_prioritized = names
    return prioritized, not_prioritized, found.differs_from(train_plainly(training, device))


def test_row_wise_is_prioritized(ranks: RankPool) -> None:
    """Answers CreateOverlapHandlerTest.test_row_wise_returns_rw_handler."""
    for prioritized, not_prioritized, found in ranks.run(2, named, sharding="row_wise"):
        assert prioritized["rows"].startswith("row_wise")
        assert (not_prioritized, found) == ({}, [])


def test_what_cannot_be_prioritized_is_named_and_trains_exactly(ranks: RankPool) -> None:
    """Answers CreateOverlapHandlerTest.test_unsupported_sharding_type_raises: TorchRec raises, the pipeline says why it
    leaves the module to TorchRec's own forward. Column-wise, TorchRec's example, is supported here.
    """
    for prioritized, not_prioritized, found in ranks.run(2, named, sharding="data_parallel"):
        assert (prioritized, found) == ({}, [])
        assert "data parallel" in not_prioritized["rows"]
    for prioritized, _, found in ranks.run(2, named, sharding="column_wise"):
        assert prioritized["rows"].startswith("column_wise")
        assert found == []
