"""Training from files: bad rows are left out and counted, or end all ranks, and other ranks go on within an epoch."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist

from tests.integration.workers.loops import JOB, assert_same_state, train_case
from tests.integration.workers.test_ending import failing_case
from tests.ranks import RankPool
from tests.unit.workers.clicks import table
from tests.unit.workers.test_criteo import line
from workers.job import InvalidJob, parse_job
from workers.training.opening import open_everywhere
from workers.training.state import tensors_in

ROWS, HELD_OUT = 240, 48
BAD = {5: "label", 100: "label", 130: "age"}
# 17 steps of 2 ranks with 8 rows each come before this one, so 272 of 2 * 192 rows are trained, into the second epoch.
STEP = 17


@pytest.fixture
def parquet(tmp_path: Path) -> dict[str, Any]:
    clicked = [2 if BAD.get(row) == "label" else row * 7 % 3 == 0 for row in range(ROWS)]
    age = [float("inf") if BAD.get(row) == "age" else row / ROWS for row in range(ROWS)]
    rows = table(range(ROWS), clicked=[int(label) for label in clicked], age=age)
    (tmp_path / "clicks").mkdir()
    for first in range(0, ROWS, 80):
        pq.write_table(rows.slice(first, 80), tmp_path / "clicks" / f"part-{first}.parquet", row_group_size=30)
    return {
        "source": "parquet",
        "path": str(tmp_path / "clicks"),
        "order": "shuffled",
        "columns": {"label": "clicked", "dense": ["age"], "ids": ["user", "item"], "sequences": ["history"]},
        "params": {"rows": 50, "holdout": HELD_OUT / ROWS, "shuffle_row_groups": 2},
        "max_bad_rows": 3,
    }


@pytest.mark.parametrize("world_size", [1, 3])
def test_other_ranks_go_on_within_an_epoch(
    ranks: RankPool, tmp_path: Path, parquet: dict[str, Any], world_size: int
) -> None:
    """With both schedules alike, over exactly the rows that are left."""
    states = []
    for schedule in ("sync", "prioritized"):
        folder = tmp_path / schedule
        folder.mkdir()
        training = {"batch_size": 8, "schedule": schedule}
        first = ranks.run(2, train_case, folder=folder, training={**training, "max_steps": STEP}, data=parquet)
        second = ranks.run(world_size, train_case, folder=folder, training=training, resume_from=STEP, data=parquet)
        samples = sum(each.samples for answer in (*first, *second) for each in answer["samples"])
        left_out = (2 * (ROWS - HELD_OUT) - STEP * 16) % world_size
        assert samples == 2 * (ROWS - HELD_OUT - len(BAD)) - left_out
        assert len(BAD) <= second[0]["trained"].bad_rows + first[0]["trained"].bad_rows
        states.append(tensors_in(folder / f"step-{second[0]['trained'].steps}"))
    assert_same_state(*states)


def test_too_many_bad_rows_end_all_ranks(ranks: RankPool, tmp_path: Path, parquet: dict[str, Any]) -> None:
    data = {**parquet, "order": "time", "max_bad_rows": 0}
    first, second = ranks.run(2, failing_case, folder=tmp_path, training={"batch_size": 8}, data=data)
    assert first == second
    assert first == (
        "UnusableDataError",
        "rank 0: 1 bad rows, and data.max_bad_rows allows 0 on each worker; mend them, "
        f"or allow more. The last ones: {tmp_path}/clicks/part-0.parquet, row 5: label 'clicked' is 2, not 0 or 1",
    )


def other_files_case(device: torch.device, data: dict[str, Any], paths: list[str]) -> list[str]:
    """What ends the opening of data that lies at another path on each rank."""
    job = parse_job({**JOB, "data": {**data, "path": paths[dist.get_rank()]}})
    with pytest.raises(InvalidJob) as caught:
        open_everywhere(job)
    return caught.value.problems


def test_ranks_that_see_other_files_are_told_apart(ranks: RankPool, tmp_path: Path, parquet: dict[str, Any]) -> None:
    (tmp_path / "fewer").mkdir()
    for part in ("part-0.parquet", "part-80.parquet"):
        (tmp_path / "fewer" / part).symlink_to(tmp_path / "clicks" / part)
    paths = [parquet["path"], str(tmp_path / "fewer")]
    problems = ranks.run(2, other_files_case, data=parquet, paths=paths)
    assert problems[0] == problems[1]
    assert problems[0] == ["data: rank 1 sees 8 steps of data, rank 0 12; give all nodes the same files"]


def test_lines_in_the_format_of_criteo(ranks: RankPool, tmp_path: Path) -> None:
    (tmp_path / "day_0").write_text("\n".join([*(line(number) for number in range(99)), "bad", line(100)]))
    data = {"source": "criteo-tsv", "path": str(tmp_path / "day_0"), "params": {"rows": 50}, "max_bad_rows": 1}
    states = []
    for schedule in ("sync", "prioritized"):
        folder = tmp_path / schedule
        folder.mkdir()
        model = {"factory": "workers.models:dlrm", "params": {"embedding_dim": 8, "bottom": [8], "top": [8]}}
        training = {"batch_size": 8, "schedule": schedule}
        first, _ = ranks.run(2, train_case, folder=folder, training=training, data=data, model=model)
        assert first["trained"].bad_rows == 1
        states.append(tensors_in(folder / f"step-{first['trained'].steps}"))
    assert_same_state(*states)
