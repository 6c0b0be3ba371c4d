"""`training.dedup` of a job: the model is sharded with index dedup, and the schedule still changes no bit. And what
`benchmarks.dedup` counts is what training sends.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.dedup import Count, count
from pipeline import TrainPipeline
from pipeline.report import CollectiveName
from tests.integration.workers.test_loop import assert_same_state, read_case, train_case
from tests.ranks import RankPool
from workers.job import DataSpec, JobSpec, parse_job
from workers.models import build_model
from workers.sources import open_source
from workers.training.batches import BatchFeed
from workers.training.sharded import shard


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_a_job_with_dedup_trains_alike_under_each_schedule(ranks: RankPool, tmp_path: Path, optimizer: str) -> None:
    states, results = [], []
    for schedule in ("sync", "prioritized"):
        training = {"schedule": schedule, "dedup": True, "sparse_optimizer": {"name": optimizer}}
        answers = ranks.run(2, train_case, folder=tmp_path / schedule, training=training)
        results.append(answers[0]["trained"])
        states.append(ranks.run(2, read_case, folder=tmp_path / schedule / "step-25", training=training)[0])
    assert_same_state(*states)
    assert results[0].metrics == results[1].metrics
    assert results[0].loss == results[1].loss


def test_a_job_asks_for_distinct_ids_only_with_dedup(ranks: RankPool, tmp_path: Path) -> None:
    asked: dict[bool, list[int]] = {}
    for dedup in (False, True):
        training: dict[str, Any] = {"dedup": dedup, "max_steps": 3}
        answers = ranks.run(2, train_case, folder=tmp_path / str(dedup), training=training)
        asked[dedup] = [each.ids for answer in answers for each in answer["samples"]]
    assert all(fewer < more for fewer, more in zip(asked[True], asked[False], strict=True))


def test_dedup_is_off_unless_a_job_asks_for_it() -> None:
    assert not parse_job({"name": "a"}).training.dedup
    assert parse_job({"name": "a", "training": {"dedup": True}}).training.dedup


DIM, BATCH = 4, 5000


def epoch(device: torch.device, dedup: bool, schedule: str) -> dict[str, int]:
    """One epoch of MovieLens-100K; what its step reports add up to."""
    job = JobSpec.model_validate(
        {
            "name": "movielens",
            "model": {"params": {"embedding_dim": DIM, "hidden": [4]}},
            "training": {"batch_size": BATCH, "dedup": dedup},
        }
    )
    source = open_source(job.data)
    model = shard(build_model(job.model, source.schema), job.training, device)
    pipe: Any = TrainPipeline(model.module, model.dense_optimizer, device, schedule=schedule)
    samples = source.train_batches(dist.get_rank(), dist.get_world_size(), BATCH, 1, 0)
    feed = BatchFeed(samples, source.schema, first=0, pinned=False)
    for _ in range(source.steps(dist.get_world_size(), BATCH, 1)):
        pipe.progress(feed)
    reports = pipe.reports(wait=True)
    rows = [each for report in reports for each in report.collectives if each.name is CollectiveName.EMBEDDING]
    gradients = [each for report in reports for each in report.collectives if each.name is CollectiveName.GRADIENT]
    return {
        "asked": sum(report.ids for report in reports),
        "overlapped": sum(report.overlapped_ids or 0 for report in reports),
        "embedding": sum(each.bytes_received for each in rows),
        "gradient": sum(each.bytes_sent for each in gradients),
    }


def expected(dedup: bool) -> Count:
    source = open_source(DataSpec())
    return count(source, BATCH, source.schema, dedup=dedup)


@pytest.mark.parametrize("dedup", [False, True])
def test_the_benchmark_counts_the_bytes_that_training_sends(ranks: RankPool, dedup: bool) -> None:
    found = ranks.run(2, epoch, dedup=dedup, schedule="sync")
    for kind in ("embedding", "gradient"):
        assert sum(each[kind] for each in found) == expected(dedup).crossing * DIM * 4


@pytest.mark.parametrize("dedup", [False, True])
def test_the_benchmark_counts_the_overlap_that_training_finds(ranks: RankPool, dedup: bool) -> None:
    found = ranks.run(2, epoch, dedup=dedup, schedule="prioritized")
    assert sum(each["asked"] for each in found) == expected(dedup).asked
    assert sum(each["overlapped"] for each in found) == expected(dedup).overlapped
