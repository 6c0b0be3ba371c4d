"""The training loop on gloo ranks: schedules agree bit for bit, and a run that starts again ends as if it had not."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.integration.workers.loops import (
    JOB,
    FolderCheckpoints,
    Recorder,
    assert_same_state,
    read_case,
    rewrite_case,
    train_case,
)
from tests.ranks import RankPool
from workers.job import InvalidJob, JobSpec, load_job, parse_job
from workers.telemetry.sender import Telemetry
from workers.training.loop import train
from workers.training.state import tensors_in
from workers.training.watchdog import Watchdog


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_the_schedule_changes_no_bit_of_the_result(ranks: RankPool, tmp_path: Path, optimizer: str) -> None:
    states, results = [], []
    for schedule in ("sync", "prioritized"):
        training = {"schedule": schedule, "sparse_optimizer": {"name": optimizer}}
        answers = ranks.run(2, train_case, folder=tmp_path / schedule, training=training)
        results.append(answers[0]["trained"])
        states.append(ranks.run(2, read_case, folder=tmp_path / schedule / "step-25", training=training)[0])
    assert_same_state(*states)
    assert results[0].metrics == results[1].metrics
    assert results[0].loss == results[1].loss
    assert any("momentum" in name for name in states[0]) == (optimizer == "rowwise_adagrad")


MODELS = {
    "dlrm": {"embedding_dim": 8, "bottom": [8], "top": [8], "pooled": ["t1"]},
    "hstu": {"embedding_dim": 8, "layers": 1},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_schedule_changes_no_bit_of_any_built_in_model(ranks: RankPool, tmp_path: Path, name: str) -> None:
    model = {"factory": f"workers.models:{name}", "params": MODELS[name]}
    states, results = [], []
    for schedule in ("sync", "prioritized"):
        training = {"schedule": schedule, "max_steps": 8}
        answers = ranks.run(2, train_case, folder=tmp_path / schedule, training=training, model=model)
        results.append(answers[0]["trained"])
        assert list(answers[0]["plans"][0].prioritized) == ["embeddings"]
        states.append(tensors_in(tmp_path / schedule / "step-8"))
    assert_same_state(*states)
    assert results[0].metrics == results[1].metrics
    assert any("momentum" in tensor and "pooled" in tensor for tensor in states[0]) == (name == "dlrm")


def test_movielens_is_learnt_alike_under_both_schedules_and_beats_popularity(ranks: RankPool, tmp_path: Path) -> None:
    example = load_job(Path(__file__).parents[3] / "examples" / "movielens.yaml")
    metrics = [
        ranks.run(
            2,
            train_case,
            folder=tmp_path / schedule,
            training={**example.training.model_dump(mode="json"), "schedule": schedule},
            model=example.model.model_dump(mode="json"),
            data=example.data.model_dump(mode="json"),
        )[0]["trained"].metrics
        for schedule in ("sync", "prioritized")
    ]
    assert metrics[0] == metrics[1]
    assert metrics[0]["auc"] > metrics[0]["auc_popularity"] + 0.05


def test_every_rank_reports_every_step_and_rank_0_the_plan(ranks: RankPool, tmp_path: Path) -> None:
    answers = ranks.run(2, train_case, folder=tmp_path, training={})
    for rank, answer in enumerate(answers):
        assert [each.step for each in answer["samples"]] == list(range(25))
        assert {each.rank for each in answer["samples"]} == {rank}
        assert all(each.loss is not None for each in answer["samples"])
        assert answer["samples"][0].data_wait_ms > 0
        assert answer["trained"].metrics == answers[0]["trained"].metrics
    assert answers[1]["plans"] == []
    (plan,) = answers[0]["plans"]
    assert (plan.steps, plan.world_size) == (25, 2)
    assert list(plan.prioritized) == ["embeddings"]
    assert [(each.name, each.rows, each.dim, each.sharding, each.ranks) for each in plan.sharding] == [
        ("t0", 200, 8, "row_wise", (0, 1)),
        ("t1", 200, 8, "row_wise", (0, 1)),
    ]
    trained = answers[0]["trained"]
    assert trained.samples == sum(each.samples for answer in answers for each in answer["samples"]) == 800
    assert trained.loss == pytest.approx(sum(answer["samples"][-1].loss for answer in answers) / 2)
    assert 0 <= trained.metrics["auc"] <= 1
    assert trained.metrics["ne"] > 0
    assert trained.metrics["calibration"] > 0


def test_a_run_that_starts_again_ends_with_the_same_bits(ranks: RankPool, tmp_path: Path) -> None:
    training = {"max_steps": 20}
    ranks.run(2, train_case, folder=tmp_path / "whole", training=training, every=7)
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == ["step-14", "step-20", "step-7"]
    (tmp_path / "again").mkdir()
    (tmp_path / "whole" / "step-7").rename(tmp_path / "again" / "step-7")
    answers = ranks.run(2, train_case, folder=tmp_path / "again", training=training, resume_from=7)
    assert [each.step for each in answers[0]["samples"]] == list(range(7, 20))
    whole, again = (
        ranks.run(2, read_case, folder=tmp_path / name / "step-20", training=training)[0] for name in ("whole", "again")
    )
    assert_same_state(whole, again)


CUT = {**JOB["model"], "sharding": {"t0": "table_wise", "t1": "column_wise"}}


def test_a_job_says_how_its_tables_are_cut(ranks: RankPool, tmp_path: Path) -> None:
    answers = ranks.run(2, train_case, folder=tmp_path, training={"max_steps": 2}, model=CUT)
    (plan,) = answers[0]["plans"]
    assert [(table.name, table.sharding, len(table.ranks), table.rows, table.dim) for table in plan.sharding] == [
        ("t0", "table_wise", 1, 200, 8),
        ("t1", "column_wise", 1, 200, 8),
    ]
    assert list(plan.prioritized) == ["embeddings"]


@pytest.mark.parametrize(("trained", "loaded"), [(JOB["model"], CUT), (CUT, JOB["model"])], ids=["cut", "by-rows"])
def test_a_checkpoint_loads_into_another_sharding_plan(
    ranks: RankPool, tmp_path: Path, trained: dict[str, Any], loaded: dict[str, Any]
) -> None:
    ranks.run(2, train_case, folder=tmp_path, training={"max_steps": 5}, model=trained)
    ranks.run(2, rewrite_case, source=tmp_path / "step-5", target=tmp_path / "again", model=loaded)
    assert_same_state(tensors_in(tmp_path / "step-5"), tensors_in(tmp_path / "again"))


def train_nothing(job: JobSpec, device: torch.device) -> None:
    checkpoints = FolderCheckpoints(Path(), None)
    train(job, device, Telemetry(Recorder(), dist.get_rank(), 0), checkpoints, Watchdog(60.0, print), 0)


def unknown_table_case(device: torch.device) -> list[str]:
    job = parse_job({**JOB, "model": {**JOB["model"], "sharding": {"t7": "row_wise"}}})
    with pytest.raises(InvalidJob) as caught:
        train_nothing(job, device)
    return caught.value.problems


def test_a_table_that_there_is_not_is_said_on_all_ranks(ranks: RankPool) -> None:
    assert ranks.run(2, unknown_table_case) == [["model.sharding.t7: no such table; the model has t0, t1"]] * 2


def missing_file_case(device: torch.device, ranks: list[int]) -> list[str]:
    path = "/nowhere/ml.inter" if dist.get_rank() in ranks else None
    job = parse_job({"name": "a", "data": {"path": path}})
    with pytest.raises(InvalidJob) as caught:
        train_nothing(job, device)
    return caught.value.problems


def test_what_is_missing_on_one_rank_is_told_on_all_of_them(ranks: RankPool) -> None:
    problem = "data.path: no such file: /nowhere/ml.inter; relative paths start at the working directory of the job"
    assert ranks.run(2, missing_file_case, ranks=[1]) == [[f"{problem} (on rank 1 only)"]] * 2
    assert ranks.run(2, missing_file_case, ranks=[0, 1]) == [[problem]] * 2


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_checkpoint_loads_into_another_number_of_ranks(ranks: RankPool, tmp_path: Path, world_size: int) -> None:
    ranks.run(2, train_case, folder=tmp_path, training={"max_steps": 5})
    two, other = (ranks.run(count, read_case, folder=tmp_path / "step-5", training={})[0] for count in (2, world_size))
    assert_same_state(two, other)


def test_a_checkpoint_does_not_change_what_is_trained(ranks: RankPool, tmp_path: Path) -> None:
    states = []
    for every in (None, 3):
        folder = tmp_path / f"{every}"
        ranks.run(2, train_case, folder=folder, training={"max_steps": 10}, every=every)
        states.append(ranks.run(2, read_case, folder=folder / "step-10", training={})[0])
    assert_same_state(*states)


# A metric that never gets better by 1 stops the training after the first evaluation and `patience` more.
HOPELESS = {"every_steps": 3, "early_stopping": {"metric": "auc", "patience": 2, "min_delta": 1.0}}


def test_an_evaluation_changes_nothing_of_what_is_trained(ranks: RankPool, tmp_path: Path) -> None:
    states, metrics = [], []
    for name, evaluation in (("without", None), ("with", {"every_steps": 3})):
        folder = tmp_path / name
        answers = ranks.run(2, train_case, folder=folder, training={"max_steps": 10}, evaluation=evaluation)
        metrics.append(answers[0]["trained"].metrics)
        states.append(ranks.run(2, read_case, folder=folder / "step-10", training={})[0])
    assert_same_state(*states)
    assert metrics[0] == metrics[1]


def test_a_run_that_gets_no_better_ends_early(ranks: RankPool, tmp_path: Path) -> None:
    answers = ranks.run(2, train_case, folder=tmp_path / "stopped", training={}, evaluation=HOPELESS)
    assert [answer["trained"].steps for answer in answers] == [9, 9]
    assert [each.step for each in answers[0]["samples"]] == list(range(9))
    ranks.run(2, train_case, folder=tmp_path / "short", training={"max_steps": 9})
    stopped, short = (
        ranks.run(2, read_case, folder=tmp_path / name / "step-9", training={})[0] for name in ("stopped", "short")
    )
    assert_same_state(stopped, short)


@pytest.mark.parametrize("resume_from", [4, 8, 9])
def test_early_stopping_outlives_a_restart(ranks: RankPool, tmp_path: Path, resume_from: int) -> None:
    ranks.run(2, train_case, folder=tmp_path, training={}, every=4, evaluation=HOPELESS)
    answers = ranks.run(
        2, train_case, folder=tmp_path, training={}, every=4, resume_from=resume_from, evaluation=HOPELESS
    )
    assert [answer["trained"].steps for answer in answers] == [9, 9]
    assert [each.step for each in answers[0]["samples"]] == list(range(resume_from, 9))
