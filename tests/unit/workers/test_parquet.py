"""Parquet: what rows become, in which order they come, and how little of the files is in memory."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.workers.clicks import COLUMNS, TOTAL, parquet, users, write, write_files
from tests.unit.workers.streams import assert_equal, batches, joined, lists, steps
from workers.sources.hashing import hash_numbers, hash_texts, to_rows
from workers.sources.schema import Consumed, Feature, Table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "clicks")


def text_rows(texts: list[str], rows: int) -> list[int]:
    offsets = np.cumsum([0, *(len(text) for text in texts)])
    found: list[int] = to_rows(hash_texts(np.frombuffer("".join(texts).encode(), np.uint8), offsets), rows).tolist()
    return found


class TestValues:
    def test_a_row_becomes_a_sample(self, folder: Path) -> None:
        (samples,) = batches(parquet(folder), size=TOTAL)
        assert samples.labels.tolist() == [row % 3 == 0 for row in range(TOTAL)]
        assert samples.dense.tolist() == [[row / 2] for row in range(TOTAL)]
        assert users(samples) == list(range(TOTAL))
        assert lists(samples, "item") == [[row] for row in text_rows([f"i{row % 7}" for row in range(TOTAL)], 100_000)]
        hashed = to_rows(hash_numbers(np.arange(2 * TOTAL)), 100_000).tolist()
        assert lists(samples, "history") == [hashed[row : row + row % 4] for row in range(TOTAL)]

    def test_each_feature_has_a_table_by_default(self, folder: Path) -> None:
        schema = parquet(folder, params={"tables": {}}).schema
        assert schema.tables == (Table("user", 100_000), Table("item", 100_000), Table("history", 100_000))
        assert schema.features == (Feature("user", "user"), Feature("item", "item"), Feature("history", "history", 50))
        assert schema.dense == 1

    def test_features_can_share_a_table(self, tmp_path: Path) -> None:
        history = [[1], [2], [3], [1, 2], [], [3]]
        path = write(tmp_path / "a.parquet", range(6), item=[1, 2, 3, 1, 2, 3], history=history)
        source = parquet(path, params={"tables": {"film": {"rows": 500, "features": ["item", "history"]}}, "rows": 9})
        assert source.schema.tables == (Table("user", 9), Table("film", 500))
        (samples,) = batches(source, size=6)
        one, two, three = (row for (row,) in lists(samples, "item")[:3])
        assert lists(samples, "history") == [[one], [two], [three], [one, two], [], [three]]

    def test_the_last_ids_of_a_sequence_are_used(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.parquet", range(3), history=[[1, 2, 3, 4], [5], [6, 7, 8]])
        columns = COLUMNS | {"ids": []}
        (samples,) = batches(parquet(path, params={"hashing": False, "max_length": 2, "tables": {}}, columns=columns))
        assert lists(samples, "history") == [[3, 4], [5], [7, 8]]

    def test_what_is_missing_has_a_value_of_its_own(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "a.parquet",
            range(3),
            age=[None, 1.5, 2.5],
            user=[7, None, 9],
            item=pa.array(["a", None, ""]),
            history=[[1, None], None, []],
        )
        (samples,) = batches(parquet(path))
        assert samples.dense.tolist() == [[0], [1.5], [2.5]]
        assert users(samples) == [7, 0, 9]
        (a, none), one = text_rows(["a", ""], 100_000), int(to_rows(hash_numbers(np.array([1])), 100_000)[0])
        assert lists(samples, "item") == [[a], [0], [none]]
        assert lists(samples, "history") == [[one, 0], [], []]

    @pytest.mark.parametrize(
        "item",
        [
            pa.array(["a", "b", None]),
            pa.array(["a", "b", None], pa.large_string()),
            pa.array([b"a", b"b", None]),
            pa.array([b"a", b"b", None], pa.binary(1)),
            pa.array(["a", "b", None]).dictionary_encode(),
        ],
        ids=lambda item: str(item.type),
    )
    def test_texts_are_the_same_ids_in_every_type(self, tmp_path: Path, item: pa.Array) -> None:
        (samples,) = batches(parquet(write(tmp_path / "a.parquet", range(3), item=item)))
        assert samples.ids["item"].values.tolist() == [*text_rows(["a", "b"], 100_000), 0]

    @pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int64(), pa.uint64()], ids=str)
    def test_numbers_are_the_same_ids_in_every_type(self, tmp_path: Path, kind: pa.DataType) -> None:
        path = write(tmp_path / "a.parquet", range(3), item=pa.array([1, 2, None], kind))
        (samples,) = batches(parquet(path))
        assert samples.ids["item"].values.tolist() == [*to_rows(hash_numbers(np.array([1, 2])), 100_000).tolist(), 0]

    @pytest.mark.parametrize(
        "history",
        [
            pa.array([[1, 2], [3, 4], None], pa.list_(pa.int32())),
            pa.array([[1, 2], [3, 4], None], pa.large_list(pa.int64())),
            pa.array([[1, 2], [3, 4], None], pa.list_(pa.int64(), 2)),
        ],
        ids=lambda history: str(history.type),
    )
    def test_sequences_are_lists_of_any_kind(self, tmp_path: Path, history: pa.Array) -> None:
        path = write(tmp_path / "a.parquet", range(3), history=history)
        params = {"hashing": False, "tables": {}}
        (samples,) = batches(parquet(path, params=params, columns=COLUMNS | {"ids": []}))
        assert lists(samples, "history") == [[1, 2], [3, 4], []]

    @pytest.mark.parametrize(
        "kind", [pa.bool_(), pa.int8(), pa.float32(), pa.float64(), pa.decimal128(4, 2)], ids=lambda kind: str(kind)
    )
    def test_labels_and_dense_values_are_numbers_of_any_kind(self, tmp_path: Path, kind: pa.DataType) -> None:
        numbers = pa.array([0.0, 1.0, 1.0]).cast(kind)
        (samples,) = batches(parquet(write(tmp_path / "a.parquet", range(3), clicked=numbers, age=numbers)))
        assert samples.labels.tolist() == [0, 1, 1]
        assert samples.dense.tolist() == [[0], [1], [1]]

    def test_a_file_may_have_only_missing_values(self, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", range(3), item=pa.nulls(3), history=pa.nulls(3), age=pa.nulls(3))
        write(tmp_path / "b.parquet", range(3, 6))
        write(tmp_path / "c.parquet", range(6, 8), history=pa.array([[], []], pa.list_(pa.null())))
        (samples,) = batches(parquet(tmp_path), size=8)
        assert samples.ids["item"].values[:3].tolist() == [0, 0, 0]
        assert samples.ids["history"].lengths.tolist() == [0, 0, 0, 3, 0, 1, 0, 0]
        assert samples.dense[:4].ravel().tolist() == [0, 0, 0, 1.5]

    def test_a_single_file_needs_no_suffix(self, tmp_path: Path) -> None:
        (samples,) = batches(parquet(write(tmp_path / "clicks", range(3))))
        assert users(samples) == [0, 1, 2]

    def test_unfinished_files_of_a_writer_are_left_out(self, folder: Path) -> None:
        write(folder / "_temporary" / "0" / "part-1.parquet", range(3))
        write(folder / ".part-1.parquet", range(3))
        assert parquet(folder).steps(1, TOTAL, 1) == 1


class TestOrder:
    @pytest.mark.parametrize("order", ["time", "shuffled"])
    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_ranks_together_train_every_row_once_in_each_epoch(self, folder: Path, order: str, world_size: int) -> None:
        source = parquet(folder, order=order, params={"shuffle_row_groups": 3})
        trained = users(joined(steps(source, world_size, size=4, epochs=3)))
        assert len(trained) == 3 * TOTAL
        assert all(sorted(trained[first : first + TOTAL]) == list(range(TOTAL)) for first in (0, TOTAL, 2 * TOTAL))

    def test_rows_come_in_the_order_of_the_files(self, folder: Path) -> None:
        assert users(joined(steps(parquet(folder), 2, size=4))) == list(range(TOTAL))

    def test_shuffled_epochs_and_seeds_have_orders_of_their_own(self, folder: Path) -> None:
        source = parquet(folder, order="shuffled")
        orders = [users(samples) for seed in (0, 1) for samples in batches(source, size=TOTAL, epochs=2, seed=seed)]
        assert all(sorted(order) == list(range(TOTAL)) for order in orders)
        assert len({tuple(order) for order in orders}) == 4

    def test_rows_are_mixed_across_row_groups(self, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", range(64), group=8)
        (samples,) = batches(parquet(tmp_path, order="shuffled", params={"shuffle_row_groups": 4}), size=64)
        groups = [user // 8 for user in users(samples)]
        assert len(set(groups[:32])) == len(set(groups[32:])) == 4
        assert sum(one != two for one, two in pairwise(groups)) > 32

    @pytest.mark.parametrize("order", ["time", "shuffled"])
    def test_a_run_that_starts_at_any_step_sees_the_same_batches(self, folder: Path, order: str) -> None:
        source = parquet(folder, order=order, params={"shuffle_row_groups": 2})
        for rank in (0, 1):
            whole = batches(source, rank, 2, size=4, epochs=3)
            for step in range(len(whole) + 1):
                rest = batches(source, rank, 2, size=4, epochs=3, start=Consumed(step, 8 * step))
                assert len(rest) == len(whole) - step
                for one, two in zip(whole[step:], rest, strict=True):
                    assert_equal(one, two)

    @pytest.mark.parametrize("order", ["time", "shuffled"])
    def test_another_number_of_workers_goes_on_within_an_epoch(self, folder: Path, order: str) -> None:
        source = parquet(folder, order=order)
        alone = users(joined(steps(source, 1, size=1, epochs=2)))
        before = steps(source, 3, size=2, epochs=2)[:4]
        after = steps(source, 2, size=5, epochs=2, start=Consumed(4, 24))
        assert users(joined([*before, *after])) == alone


class TestHoldout:
    def test_the_last_rows_are_held_out(self, folder: Path) -> None:
        source = parquet(folder, order="shuffled", params={"holdout": 0.25})
        assert sorted(users(joined(steps(source, 1, size=22)))) == list(range(22))
        held_out = [each for rank in (0, 1) for each in source.holdout(rank, 2, 3)]
        assert [len(each.samples) for each in held_out] == [3, 3, 3, 3]
        assert [user for each in held_out for user in users(each.samples)[: each.valid]] == list(range(22, 30))

    def test_nothing_is_held_out_if_the_job_says_so(self, folder: Path) -> None:
        assert list(parquet(folder).holdout(0, 2, 4)) == []
