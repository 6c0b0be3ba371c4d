"""A training that goes on from a checkpoint: after a crash, with other ranks, past a step, ahead of a preemption."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

from tests.integration.workers.loops import JOB, assert_same_state, train_case
from tests.ranks import RankPool
from workers.training.state import tensors_in

FRAGILE = "tests.integration.workers.fragile"
DROPOUT = {"factory": f"{FRAGILE}:forgetful"}
BATCH = JOB["training"]["batch_size"]
SAMPLES = JOB["training"]["epochs"] * JOB["data"]["params"]["samples"]


def test_random_states_go_on_where_they_were(ranks: RankPool, tmp_path: Path) -> None:
    """Dropout after a restart drops what it would have dropped without one, on each rank."""
    for folder, resume_from in ((tmp_path / "whole", None), (tmp_path / "again", 4)):
        folder.mkdir()
        if resume_from is not None:
            (tmp_path / "whole" / "step-4").rename(folder / "step-4")
        training = {"max_steps": 9}
        ranks.run(2, train_case, folder=folder, training=training, every=4, resume_from=resume_from, model=DROPOUT)
    assert_same_state(*(tensors_in(tmp_path / name / "step-9") for name in ("whole", "again")))


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_another_number_of_ranks_goes_on_within_an_epoch(ranks: RankPool, tmp_path: Path, world_size: int) -> None:
    """With any schedule alike, over exactly the samples that are left."""
    ranks.run(2, train_case, folder=tmp_path, training={"max_steps": 7})
    states = []
    for schedule in ("sync", "prioritized"):
        folder = tmp_path / schedule
        folder.mkdir()
        (folder / "step-7").symlink_to(tmp_path / "step-7")
        answers = ranks.run(
            world_size, train_case, folder=folder, training={"schedule": schedule}, resume_from=7, every=100
        )
        left = SAMPLES - 7 * 2 * BATCH
        steps, tail = divmod(left, world_size * BATCH)
        last = 7 + steps + (tail >= world_size)
        for answer in answers:
            assert [each.step for each in answer["samples"]] == list(range(7, last))
        assert sum(each.samples for answer in answers for each in answer["samples"]) == left - tail % world_size
        states.append(tensors_in(folder / f"step-{last}"))
    assert_same_state(*states)


def test_it_may_change_the_number_of_ranks_more_than_once(ranks: RankPool, tmp_path: Path) -> None:
    trained = 0
    for world_size, resume_from, until in ((2, None, 5), (4, 5, 9), (1, 9, 12), (2, 12, None)):
        training = {"max_steps": until}
        answers = ranks.run(world_size, train_case, folder=tmp_path, training=training, resume_from=resume_from)
        trained += sum(each.samples for answer in answers for each in answer["samples"])
    assert trained == SAMPLES


@pytest.mark.parametrize("step", [0, 5, 24])
def test_a_step_that_is_left_out_changes_nothing_but_that(ranks: RankPool, tmp_path: Path, step: int) -> None:
    """As if its batches had never been in the data; the other steps keep their numbers."""
    shorter = {"source": f"{FRAGILE}:shorter", "params": {**JOB["data"]["params"], "missing_step": step}}
    answers = ranks.run(2, train_case, folder=tmp_path / "out", training={}, every=6, skipped=frozenset([step]))
    ranks.run(2, train_case, folder=tmp_path / "shorter", training={}, data=shorter)
    assert [each.step for each in answers[0]["samples"]] == [each for each in range(25) if each != step]
    last = 25 if step < 24 else 24
    assert_same_state(tensors_in(tmp_path / "out" / f"step-{last}"), tensors_in(tmp_path / "shorter" / "step-24"))


@pytest.mark.parametrize("notice", [{1: 5}, {0: 1}, {0: 6, 1: 7}, {0: 25}], ids=str)
def test_a_notice_of_a_preemption_saves_once_and_changes_nothing(
    ranks: RankPool, tmp_path: Path, notice: dict[int, int]
) -> None:
    """All ranks save at the same step, soon after the first of them is told, and train on."""
    answers = ranks.run(2, train_case, folder=tmp_path / "told", training={}, notice=notice)
    ranks.run(2, train_case, folder=tmp_path / "untold", training={})
    saved = sorted(int(path.name.removeprefix("step-")) for path in (tmp_path / "told").iterdir())
    assert saved[-1] == 25
    assert min(notice.values()) <= saved[0] <= min(25, min(notice.values()) + 3)
    for answer in answers:
        assert [each.step for each in answer["samples"]] == list(range(25))
    assert_same_state(*(tensors_in(tmp_path / name / "step-25") for name in ("told", "untold")))


def test_a_notice_just_before_a_checkpoint_does_not_end_the_training(ranks: RankPool, tmp_path: Path) -> None:
    """The checkpoint that was due anyway answers the notice of one rank before the others have heard of it."""
    answers = ranks.run(2, train_case, folder=tmp_path, training={}, every=6, notice={1: 5})
    for answer in answers:
        assert [each.step for each in answer["samples"]] == list(range(25))


@pytest.mark.parametrize("stop", [{1: 5}, {0: 1}, {0: 6, 1: 7}, {0: 25}], ids=str)
def test_a_job_that_is_told_to_stop_saves_and_goes_on_later(
    ranks: RankPool, tmp_path: Path, stop: dict[int, int]
) -> None:
    """All ranks save at the same step, soon after the first of them is told, and no step is trained twice."""
    answers = ranks.run(2, train_case, folder=tmp_path, training={}, stop=stop)
    (saved,) = {answer["trained"].steps for answer in answers}
    assert min(stop.values()) <= saved <= min(25, min(stop.values()) + 3)
    assert [path.name for path in tmp_path.iterdir()] == [f"step-{saved}"]
    again = ranks.run(2, train_case, folder=tmp_path, training={}, resume_from=saved)
    for before, after in zip(answers, again, strict=True):
        assert [each.step for each in (*before["samples"], *after["samples"])] == list(range(25))
    ranks.run(2, train_case, folder=tmp_path / "whole", training={})
    assert_same_state(tensors_in(tmp_path / "step-25"), tensors_in(tmp_path / "whole" / "step-25"))


def test_a_job_that_is_told_to_stop_ahead_of_a_preemption_ends(ranks: RankPool, tmp_path: Path) -> None:
    """The notice of one rank and the stop of another meet at the same step."""
    answers = ranks.run(2, train_case, folder=tmp_path, training={}, notice={0: 5}, stop={1: 5})
    (saved,) = {answer["trained"].steps for answer in answers}
    assert [path.name for path in tmp_path.iterdir()] == [f"step-{saved}"]


class PlainRanker(nn.Module):
    """Somebody's own module, which knows the names in the checkpoint and nothing of where it comes from."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingConfig(name=f"t{index}", embedding_dim=8, num_embeddings=200, feature_names=[f"f{index}"])
            for index in (0, 1)
        ]
        self.embeddings = EmbeddingCollection(tables=tables, device=torch.device("meta"))


def plain_torchrec_case(device: torch.device, folder: Path) -> dict[str, torch.Tensor]:
    """The tables as TorchRec's own DistributedModelParallel reads them, gathered on rank 0."""
    sharders: Any = [EmbeddingCollectionSharder()]
    module = DistributedModelParallel(PlainRanker(), device=device, sharders=sharders)
    state = {"model": module.state_dict()}
    load(state, storage_reader=FileSystemReader(folder))
    module.load_state_dict(state["model"])
    found = {}
    for name, sharded in module.state_dict().items():
        found[f"model.{name}"] = torch.zeros(sharded.size())
        sharded.gather(0, found[f"model.{name}"] if dist.get_rank() == 0 else None)
    return found


def test_plain_torchrec_loads_a_checkpoint(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, train_case, folder=tmp_path, training={"max_steps": 5})
    written = tensors_in(tmp_path / "step-5")
    for world_size in (1, 2):
        loaded = ranks.run(world_size, plain_torchrec_case, folder=tmp_path / "step-5")[0]
        assert sorted(loaded) == [f"model.embeddings.embeddings.t{index}.weight" for index in (0, 1)]
        assert_same_state(loaded, {name: written[name] for name in loaded})
