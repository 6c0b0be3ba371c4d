"""A training that ends before its data does: on all ranks at once, with a reason, and with nothing lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.integration.workers.loops import JOB, assert_same_state, read_case, train_case
from tests.ranks import RankPool
from workers.job import DataSpec
from workers.sources import open_source
from workers.sources.schema import Consumed
from workers.training.ending import DivergedError, refuse_diverged

FRAGILE = "tests.integration.workers.fragile"


def failing_case(device: torch.device, **arguments: Any) -> tuple[str, str]:
    """What ends a training on this rank."""
    try:
        train_case(device, **arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def unreadable(step: int) -> dict[str, Any]:
    params = {**JOB["data"]["params"], "failing_rank": 1, "failing_step": step}
    return {"source": f"{FRAGILE}:source", "params": params}


@pytest.mark.parametrize("step", [0, 1, 7])
def test_data_that_cannot_be_read_ends_all_ranks_after_the_step_before(
    ranks: RankPool, tmp_path: Path, step: int
) -> None:
    training = {"max_steps": 12}
    first, second = ranks.run(2, failing_case, folder=tmp_path, training=training, data=unreadable(step))
    assert first == ("EndedByPeerError", "the data of rank 1 failed")
    assert second == ("DataFailedError", "reading training data: OSError: disk gone")
    ranks.run(2, train_case, folder=tmp_path, training=training, resume_from=step or None)
    ranks.run(2, train_case, folder=tmp_path / "whole", training=training)
    again, whole = (
        ranks.run(2, read_case, folder=folder / "step-12", training={})[0] for folder in (tmp_path, tmp_path / "whole")
    )
    assert_same_state(again, whole)


def diverging(rank: int, step: int) -> dict[str, Any]:
    return {"factory": f"{FRAGILE}:diverging", "params": {"rank": rank, "call": step + 1}}


@pytest.mark.parametrize("every", [None, 1, 4])
def test_a_loss_that_is_not_finite_ends_all_ranks_and_keeps_the_batch(
    ranks: RankPool, tmp_path: Path, every: int | None
) -> None:
    """Also with a checkpoint after every step, none holds what the loss has spoilt."""
    endings = ranks.run(2, failing_case, folder=tmp_path, training={}, model=diverging(rank=1, step=5), every=every)
    assert endings[0] == endings[1]
    name, message = endings[0]
    assert name == "DivergedError"
    archive = tmp_path / "not-finite-step-00000005-rank-1.npz"
    assert message.startswith(f"the loss of step 5 is not finite on rank 1 (batch kept as {archive}). Look at")
    saved = [] if every is None else [f"step-{step}" for step in range(every, 6, every)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [archive.name, *saved]
    _assert_is_the_batch(archive, rank=1, step=5)


def _assert_is_the_batch(archive: Path, rank: int, step: int) -> None:
    source = open_source(DataSpec.model_validate(JOB["data"]))
    batch_size = JOB["training"]["batch_size"]
    samples = next(source.train_batches(rank, 2, batch_size, 2, 0, Consumed(step, step * 2 * batch_size)))
    with np.load(archive) as kept:
        assert np.array_equal(kept["labels"], samples.labels)
        assert np.array_equal(kept["dense"], samples.dense)
        for name, ragged in samples.ids.items():
            assert np.array_equal(kept[f"{name}.values"], ragged.values)
            assert np.array_equal(kept[f"{name}.lengths"], ragged.lengths)


def full_disk_case(device: torch.device) -> str:
    def full(step: int) -> str:
        raise OSError(f"no space left for step {step}")

    with pytest.raises(DivergedError) as caught:
        refuse_diverged(4 if dist.get_rank() == 1 else 6, full)
    return str(caught.value)


def test_a_batch_that_cannot_be_kept_ends_all_ranks_all_the_same(ranks: RankPool) -> None:
    first, second = ranks.run(2, full_disk_case)
    assert first == second
    assert "the loss of step 4 is not finite on rank 1 (batch not kept: OSError: no space left for step 4)." in first
