"""The exactness matrix on CUDA and NCCL: the cases of tests/integration/pipeline, and the optimizers that CPUs lack."""

from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType

from tests.gpu import device
from tests.integration.pipeline import test_behaviour, test_conditions, test_exactness, test_state
from tests.integration.pipeline.reference import Case, Table, differences, train_plainly
from tests.integration.pipeline.torchrec_pec import test_embedding, test_train_pipeline
from tests.ranks import RankPool

SCHEDULES = ["sync", "sparse_dist", "prioritized"]
LOOPS = ["change_rates", "detach_and_attach", "accumulate", "run_epochs", "load_between_steps"]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)

# fbgemm's CPU backward has SGD and the Adagrads only.
OPTIMIZERS = [
    EmbOptimType.EXACT_SGD,
    EmbOptimType.EXACT_ADAGRAD,
    EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    EmbOptimType.ADAM,
    EmbOptimType.PARTIAL_ROWWISE_ADAM,
    EmbOptimType.LAMB,
    EmbOptimType.PARTIAL_ROWWISE_LAMB,
    EmbOptimType.LARS_SGD,
]
CASES = {
    **test_exactness.CASES,
    **{f"optimizer {each.value}": Case(optimizer=each, learning_rate=0.01) for each in OPTIMIZERS},
    "large dimensions": Case(
        dim=128, batch_size=64, max_ids=20, collections=((Table(900, ("a", "b")), Table(700, ("c",))),)
    ),
}


def plain_twice(cuda: torch.device, case: Case) -> list[str]:
    return differences(train_plainly(case, cuda)[0], train_plainly(case, cuda)[0])


@pytest.mark.parametrize("name", CASES)
def test_plain_training_gives_the_same_bits_twice(cuda_ranks: RankPool, world_size: int, name: str) -> None:
    """What everything below rests on: without it a difference would say nothing about the pipeline."""
    assert device.run(cuda_ranks, world_size, plain_twice, case=CASES[name]) == [[]] * world_size


@every_schedule
@pytest.mark.parametrize("name", CASES)
def test_bit_identical_to_plain_training(cuda_ranks: RankPool, world_size: int, name: str, schedule: str) -> None:
    for found in device.run(cuda_ranks, world_size, test_exactness.compare, case=CASES[name], schedule=schedule):
        assert found["differences"] == []
        assert found["outputs"]


@every_schedule
def test_flush_after_any_step(cuda_ranks: RankPool, world_size: int, schedule: str) -> None:
    for found in device.run(cuda_ranks, world_size, test_behaviour.flush_in_the_middle, schedule=schedule):
        assert not any(found.values()), found


@every_schedule
def test_evaluation_in_the_middle(cuda_ranks: RankPool, world_size: int, schedule: str) -> None:
    for found in device.run(cuda_ranks, world_size, test_behaviour.evaluate_in_the_middle, schedule=schedule):
        assert (found["equal"], found["differences"]) == ([True] * 6, [])


@every_schedule
@pytest.mark.parametrize(
    "case",
    [test_behaviour.change_rates, test_state.detach_and_attach, test_state.accumulate],
    ids=lambda case: case.__name__,
)
def test_no_difference(cuda_ranks: RankPool, world_size: int, schedule: str, case: Any) -> None:
    assert device.run(cuda_ranks, world_size, case, schedule=schedule) == [[]] * world_size


@every_schedule
@pytest.mark.parametrize(
    "name", ["change_rates", "detach_and_attach", "accumulate", "run_epochs", "load_between_steps"]
)
def test_what_a_loop_may_do(cuda_ranks: RankPool, world_size: int, schedule: str, name: str) -> None:
    case = getattr(test_behaviour, name, None) or getattr(test_state, name)
    for found in device.run(cuda_ranks, world_size, case, schedule=schedule):
        assert (found["differences"] if isinstance(found, dict) else found) == []


@every_schedule
def test_iterations(cuda_ranks: RankPool, world_size: int, schedule: str) -> None:
    for found in device.run(cuda_ranks, world_size, test_state.count_iterations, schedule=schedule):
        assert found
        assert all(found)


@every_schedule
@pytest.mark.parametrize("which", ["called", "in_loss"])
def test_rows_that_the_loss_does_not_use(cuda_ranks: RankPool, world_size: int, schedule: str, which: str) -> None:
    use = test_conditions.Use(**{which: (True, True, False, True, False, False, True, True)})
    for found in device.run(cuda_ranks, world_size, test_conditions.compare, use=use, schedule=schedule):
        assert found["differences"] == []


@every_schedule
def test_a_rank_that_runs_out(cuda_ranks: RankPool, world_size: int, schedule: str) -> None:
    if world_size == 1:
        pytest.skip("needs a rank that runs out before another")
    for found in device.run(cuda_ranks, world_size, test_behaviour.run_out, schedule=schedule):
        assert found["differences"] == []


@every_schedule
@pytest.mark.parametrize("name", test_train_pipeline.MODELS)
def test_pec_wrappers(cuda_ranks: RankPool, world_size: int, name: str, schedule: str) -> None:
    arguments: dict[str, Any] = {"name": name, "count": 7, "schedule": schedule}
    for found in device.run(cuda_ranks, world_size, test_train_pipeline.compare, **arguments):
        assert (found["missed"], found["differences"]) == ([], [])


def test_pec_gradients_across_shards(cuda_ranks: RankPool, world_size: int) -> None:
    if world_size != 2:
        pytest.skip("the batches are written for two ranks")
    training = test_embedding.CROSS_SHARD
    assert device.run(cuda_ranks, 2, test_embedding.train_both_ways, training=training) == [[], []]
