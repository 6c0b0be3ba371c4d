"""`training.dedup` of a job: the model is sharded with index dedup, and the schedule still changes no bit."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.workers.test_loop import assert_same_state, read_case, train_case
from tests.ranks import RankPool
from workers.job import parse_job


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_a_job_with_dedup_trains_alike_under_each_schedule(ranks: RankPool, tmp_path: Path, optimizer: str) -> None:
    states, results = [], []
    for schedule in ("sync", "prioritized"):
        training = {"schedule": schedule, "dedup": True, "sparse_optimizer": {"name": optimizer}}
        answers = ranks.run(2, train_case, folder=tmp_path / schedule, training=training)
        results.append(answers[0]["trained"])
        states.append(ranks.run(2, read_case, folder=tmp_path / schedule / "step-26", training=training)[0])
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
