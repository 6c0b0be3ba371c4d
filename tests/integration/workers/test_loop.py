"""The training loop on gloo ranks: schedules agree bit for bit, and a run that starts again ends as if it had not."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from workers.job import InvalidJob, parse_job
from workers.models import build_model
from workers.reports import SAMPLES, JobPlan, StepSample
from workers.sources import open_source
from workers.telemetry.sender import Fate, Telemetry
from workers.training.checkpoint import read_state, write_part
from workers.training.loop import train
from workers.training.sharded import ShardedModel, shard

JOB: dict[str, Any] = {
    "name": "small",
    "model": {"params": {"embedding_dim": 8, "hidden": [8]}},
    "data": {
        "source": "synthetic",
        "params": {"samples": 400, "rows": 200, "min_ids_per_sample": 0, "holdout_samples": 50, "dense": 2},
    },
    "training": {"batch_size": 16, "epochs": 2},
}


class Recorder:
    """A link that keeps what it is given."""

    def __init__(self) -> None:
        self.samples: list[StepSample] = []
        self.plans: list[JobPlan] = []

    def send(self, rank: int, attempt: int, samples: bytes, dropped: int) -> None:
        self.samples += SAMPLES.validate_json(samples)

    def fate(self, ticket: object) -> Fate:
        return Fate.ARRIVED

    def announce(self, plan: JobPlan) -> None:
        self.plans.append(plan)


class FolderCheckpoints:
    """Checkpoints in one folder for all ranks, `step-N` each; restores `resume_from`."""

    def __init__(self, folder: Path, resume_from: int | None) -> None:
        self._folder, self._resume_from = folder, resume_from

    def restore(self, model: ShardedModel) -> int:
        if self._resume_from is None:
            return 0
        return read_state(model, self._folder / f"step-{self._resume_from}")

    def save(self, model: ShardedModel, steps: int, figures: dict[str, float | None]) -> None:
        write_part(model, steps, self._folder / f"step-{steps}")


def whole_state(folder: Path, training: Any) -> dict[str, torch.Tensor]:
    """The state of a checkpoint as this number of ranks reads it, every shard gathered; by name."""
    job = parse_job({**JOB, "training": {**JOB["training"], **training}})
    model = shard(build_model(job.model, open_source(job.data).schema), job.training, torch.device("cpu"))
    read_state(model, folder)
    found: dict[str, torch.Tensor] = {}
    _collect("", model.state(), found)
    return found


def _collect(name: str, value: Any, found: dict[str, torch.Tensor]) -> None:
    if isinstance(value, dict):
        for key, below in value.items():
            _collect(f"{name}/{key}", below, found)
    elif isinstance(value, torch.distributed._shard.sharded_tensor.ShardedTensor):
        whole = torch.zeros(value.size())
        value.gather(0, whole if dist.get_rank() == 0 else None)
        found[name] = whole
    elif isinstance(value, torch.Tensor):
        found[name] = value


def train_case(
    device: torch.device,
    folder: Path,
    training: dict[str, Any],
    every: int | None = None,
    resume_from: int | None = None,
) -> dict[str, Any]:
    job = parse_job({**JOB, "training": {**JOB["training"], **training}, "checkpoint": {"every_steps": every}})
    recorder = Recorder()
    telemetry = Telemetry(recorder, dist.get_rank(), 0)
    telemetry.start()
    trained = train(job, device, telemetry, FolderCheckpoints(folder, resume_from), attempt=0)
    telemetry.close(timeout_s=30)
    return {"trained": trained, "samples": recorder.samples, "plans": recorder.plans}


def read_case(device: torch.device, folder: Path, training: dict[str, Any]) -> dict[str, torch.Tensor]:
    return whole_state(folder, training)


def assert_same_state(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, different


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_the_schedule_changes_no_bit_of_the_result(ranks: RankPool, tmp_path: Path, optimizer: str) -> None:
    states, results = [], []
    for schedule in ("sync", "prioritized"):
        training = {"schedule": schedule, "sparse_optimizer": {"name": optimizer}}
        answers = ranks.run(2, train_case, folder=tmp_path / schedule, training=training)
        results.append(answers[0]["trained"])
        states.append(ranks.run(2, read_case, folder=tmp_path / schedule / "step-26", training=training)[0])
    assert_same_state(*states)
    assert results[0].metrics == results[1].metrics
    assert results[0].loss == results[1].loss
    assert any("momentum" in name for name in states[0]) == (optimizer == "rowwise_adagrad")


def test_every_rank_reports_every_step_and_rank_0_the_plan(ranks: RankPool, tmp_path: Path) -> None:
    answers = ranks.run(2, train_case, folder=tmp_path, training={})
    for rank, answer in enumerate(answers):
        assert [each.step for each in answer["samples"]] == list(range(26))
        assert {each.rank for each in answer["samples"]} == {rank}
        assert all(each.loss is not None for each in answer["samples"])
        assert answer["samples"][0].data_wait_ms > 0
        assert answer["trained"].metrics == answers[0]["trained"].metrics
    assert answers[1]["plans"] == []
    (plan,) = answers[0]["plans"]
    assert (plan.steps, plan.world_size) == (26, 2)
    assert list(plan.prioritized) == ["embeddings"]
    trained = answers[0]["trained"]
    assert trained.samples == sum(each.samples for answer in answers for each in answer["samples"]) == 800
    assert trained.loss == pytest.approx(sum(answer["samples"][-1].loss for answer in answers) / 2)
    assert 0 <= trained.metrics["auc"] <= 1


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


def missing_file_case(device: torch.device, ranks: list[int]) -> list[str]:
    path = "/nowhere/ml.inter" if dist.get_rank() in ranks else None
    job = parse_job({"name": "a", "data": {"path": path}})
    with pytest.raises(InvalidJob) as caught:
        train(job, device, Telemetry(Recorder(), dist.get_rank(), 0), FolderCheckpoints(Path(), None), attempt=0)
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
