"""The promise: every schedule gives the weights of plain synchronous training, bit for bit."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType

from tests.integration.pipeline.reference import Case, Table, differences, train_pipelined, train_plainly
from tests.ranks import RankPool

CASES = {
    "two tables, two features on one": Case(),
    "sgd": Case(optimizer=EmbOptimType.EXACT_SGD),
    "two collections": Case(
        collections=((Table(40, ("a", "b")), Table(20, ("c",))), (Table(25, ("d", "a")), Table(33, ("e",)))), dim=4
    ),
    "a feature shared by two tables": Case(collections=((Table(40, ("a", "b")), Table(40, ("b", "c"))),)),
    "tiny tables, nearly all rows overlap": Case(collections=((Table(5, ("a", "b")), Table(4, ("c",))),)),
    "large tables, hardly any row overlaps": Case(collections=((Table(5000, ("a", "b")), Table(7001, ("c",))),)),
    "batch sizes that differ between ranks": Case(uneven_batches=True),
    "a single batch": Case(steps=1),
    "two batches": Case(steps=2),
    "no batch": Case(steps=0),
}


def compare(device: torch.device, case: Case, schedule: str) -> dict[str, Any]:
    plain, plain_outputs = train_plainly(case, device)
    piped, piped_outputs = train_pipelined(case, device, schedule)
    return {
        "differences": differences(plain, piped),
        "outputs": len(plain_outputs) == len(piped_outputs)
        and all(torch.equal(one, other) for one, other in zip(plain_outputs, piped_outputs, strict=True)),
        "fused": sum(name.startswith("fused/") for name in plain),
    }


@pytest.mark.parametrize("schedule", ["sync", "sparse_dist", "prioritized"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_bit_identical_to_plain_training(ranks: RankPool, name: str, world_size: int, schedule: str) -> None:
    for rank, found in enumerate(ranks.run(world_size, compare, case=CASES[name], schedule=schedule)):
        assert found["differences"] == [], f"rank {rank}"
        assert found["outputs"], f"rank {rank}: outputs differ"
        assert found["fused"] > 0 or CASES[name].optimizer is EmbOptimType.EXACT_SGD


def test_another_seed_gives_other_weights(ranks: RankPool) -> None:
    """Guards the comparison itself: it must be able to tell two runs apart."""
    [found, *_] = ranks.run(2, _compare_seeds)
    assert found


def _compare_seeds(device: torch.device) -> list[str]:
    one, _ = train_plainly(Case(), device)
    other, _ = train_plainly(replace(Case(), seed=1), device)
    return differences(one, other)
