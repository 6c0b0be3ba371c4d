"""Parquet: which rows are left out, and which files and columns are refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import nn

from tests.unit.workers.clicks import COLUMNS, PLAIN_USER, parquet, spec, users, write, write_files
from tests.unit.workers.streams import assert_equal, batches, joined, steps
from workers.job import InvalidJob
from workers.sources import check
from workers.sources.bad_rows import BadRows, NoGoodRows, TooManyBadRows
from workers.sources.schema import Consumed, Samples, Source
from workers.sources.tables import lookups


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "clicks")


def bad_rows(source: Source) -> int:
    assert isinstance(source, BadRows)
    return source.bad_rows


class TestBadRows:
    BAD = {  # noqa: RUF012
        "label 'clicked' is missing": {"clicked": [0, 1, None, 0]},
        "label 'clicked' is 2, not 0 or 1": {"clicked": [0, 1, 2, 0]},
        "label 'clicked' is 0.5, not 0 or 1": {"clicked": [0.0, 1.0, 0.5, 0.0]},
        "label 'clicked' is nan, not 0 or 1": {"clicked": [0.0, 1.0, float("nan"), 0.0]},
        "'age' is nan, not a finite number of 32 bits": {"age": [1.0, 2.0, float("nan"), None]},
        "'age' is -inf, not a finite number of 32 bits": {"age": [1.0, 2.0, -float("inf"), None]},
        "'age' is inf, not a finite number of 32 bits": {"age": [1.0, 2.0, 1e39, None]},
        "id 1000 in 'user' is outside of the 1000 rows of table 'user'": {"user": [1, 2, 1000, None]},
        "id -1 in 'user' is outside of the 1000 rows of table 'user'": {"user": [1, 2, -1, 999]},
        "id 70 in 'history' is outside of the 70 rows of table 'history'": {"history": [[], [69], [1, 70], None]},
    }

    @pytest.mark.parametrize(("reason", "columns"), BAD.items(), ids=BAD)
    def test_a_bad_row_is_named_and_ends_the_job(self, tmp_path: Path, reason: str, columns: dict[str, Any]) -> None:
        write(tmp_path / "a.parquet", range(3))
        write(tmp_path / "b.parquet", range(3, 7), **columns)
        tables = {**PLAIN_USER, "history": {"rows": 70, "hashing": False}}
        with pytest.raises(TooManyBadRows, match=r"1 bad rows, and data.max_bad_rows allows 0") as caught:
            batches(parquet(tmp_path, params={"tables": tables}))
        assert str(caught.value).endswith(f"The last ones: {tmp_path}/b.parquet, row 2: {reason}")

    @pytest.mark.parametrize(("reason", "columns"), BAD.items(), ids=BAD)
    def test_the_others_are_trained_as_if_it_were_not_there(
        self, tmp_path: Path, reason: str, columns: dict[str, Any]
    ) -> None:
        write(tmp_path / "bad" / "b.parquet", range(3, 7), **columns)
        good = pq.read_table(tmp_path / "bad" / "b.parquet").take([0, 1, 3])
        (tmp_path / "good").mkdir()
        pq.write_table(good, tmp_path / "good" / "b.parquet")
        params = {"tables": {**PLAIN_USER, "history": {"rows": 70, "hashing": False}}}
        (samples,) = batches(parquet(tmp_path / "bad", params=params, max_bad_rows=1))
        (expected,) = batches(parquet(tmp_path / "good", params=params))
        assert samples.taken == 4
        assert_equal(joined([samples]), Samples(expected.labels, expected.ids, expected.dense, rows=4))

    @pytest.mark.parametrize("seed", range(3))
    def test_it_is_named_wherever_it_comes_in_a_shuffled_epoch(self, folder: Path, seed: int) -> None:
        write(folder / "part-10.parquet", range(10, 17), clicked=[0, 0, 0, 0, 0, 2, 0])
        with pytest.raises(TooManyBadRows, match=r"part-10.parquet, row 5: label 'clicked' is 2, not 0 or 1"):
            batches(parquet(folder, order="shuffled"), seed=seed)

    def test_each_rank_counts_its_own_and_each_row_once(self, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", range(16), clicked=[2, 1, 2, 1, 0, 0, 0, 2] * 2)
        ranks = [parquet(tmp_path, max_bad_rows=4) for _ in range(2)]
        for rank, source in enumerate(ranks):
            assert [samples.taken for samples in batches(source, rank, 2, size=4, epochs=2)] == [4] * 4
        assert [bad_rows(source) for source in ranks] == [4, 2]

    def test_the_position_counts_bad_rows(self, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", range(16), clicked=[2, 1, 2, 1, 0, 0, 0, 2] * 2)
        source = parquet(tmp_path, max_bad_rows=16)
        whole = steps(source, 1, size=4)
        rest = steps(source, 1, size=2, start=Consumed(2, sum(samples.taken for samples in whole[:2])))
        assert users(joined(whole[2:])) == users(joined(rest)) == [9, 11, 12, 13, 14]

    def test_a_batch_without_a_good_row_is_an_error(self, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", range(8), clicked=[0, 1, 0, 1, 2, 2, 2, 2])
        with pytest.raises(NoGoodRows, match=r"all 4 rows of a batch are bad\. The last ones: .*, row 5: .*, row 7: l"):
            batches(parquet(tmp_path, max_bad_rows=100))

    def test_bad_rows_are_left_out_and_batches_filled_up(self, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", range(8), clicked=[0, 0, 0, 0, 2, 1, 2, 2])
        source = parquet(tmp_path, params={"holdout": 0.5}, max_bad_rows=3)
        one, two = source.holdout(0, 1, 2)
        assert (users(one.samples)[: one.valid], one.valid, two.valid) == ([5], 1, 0)
        assert len(one.samples) == len(two.samples) == 2
        assert two.samples.ids["history"].lengths.tolist() == [0, 0]
        assert bad_rows(source) == 3
        assert len(list(source.holdout(0, 1, 2))) == 2


class TestFaults:
    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"path": None}, "data.path: 'parquet' reads files; name a file, a folder or s3://bucket/prefix"),
            ({"path": "/nowhere"}, "data.path: no such file or folder: /nowhere; relative paths start at"),
            ({"path": "s3://key:secret@bucket/x"}, "data.path: leave credentials out of it; workers take them from"),
            ({"columns": None}, "data.columns: source 'parquet' needs it: {label: COLUMN"),
            ({"params": {"row": 5}}, r"data.params.row: unknown field; did you mean 'rows'\?"),
            ({"params": {"rows": 1}}, "data.params.rows: .* greater than or equal to 2"),
            ({"params": {"tables": {"user": {"row": 9}}}}, "data.params.tables.user.row: unknown field; did you mean"),
            ({"params": {"tables": {"film": {}}}}, "data.params.tables.film: no feature 'film'; data.columns has"),
            (
                {"params": {"tables": {"a": {"features": ["user"]}, "user": {}}}},
                "data.params.tables.user: 'user' looks up table 'a'; name it once",
            ),
            (
                {"params": {"tables": {"user": {"features": ["item"]}}}},
                "data.params.tables.user: add 'user' to its features, or rename it",
            ),
            (
                {"columns": COLUMNS | {"ids": ["a.b"]}, "params": {"tables": {}}},
                r"data.columns: .* 'a.b'; add a_b_table: {features: \[a.b\]} to data.params.tables",
            ),
            (
                {"columns": COLUMNS | {"dense": [], "ids": ["user", "type"]}},
                "data.columns: .* no table be called 'type';",
            ),
        ],
    )
    def test_a_job_that_does_not_fit_is_refused(self, folder: Path, changes: dict[str, Any], problem: str) -> None:
        with pytest.raises(InvalidJob, match=problem):
            check(spec(folder, **changes))

    def test_no_table_is_called_as_what_a_module_has(self) -> None:
        words = {name for name in dir(nn.ModuleDict()) if "_" not in name}
        refused = set()
        for name in words | {"item", "state", "name"}:
            try:
                lookups((name,), {}, rows=10, hashing=True)
            except InvalidJob:
                refused.add(name)
        assert refused == words

    def test_the_control_plane_asks_nothing_over_a_network(self) -> None:
        code = (
            "import sys; from workers.job import DataSpec; from workers.sources import check\n"
            "columns = {'label': 'y', 'ids': ['user']}\n"
            "check(DataSpec(source='parquet', path='s3://no-such-bucket/x', columns=columns))\n"
            "check(DataSpec(source='criteo-tsv', path='s3://no-such-bucket/x'))\n"
            "sys.exit(bool({'pyarrow', 'torch', 'ray'} & set(sys.modules)))"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    @pytest.mark.parametrize(
        ("columns", "problem"),
        [
            ({"clicked": ["yes"] * 3}, "data.columns.label: column 'clicked' of .*a.parquet is string; a label is"),
            ({"age": ["old"] * 3}, "data.columns.dense: column 'age' of .* is string; a dense value is a number or a"),
            ({"item": [1.0] * 3}, "data.columns.ids: column 'item' of .* is double; an id is a whole number or"),
            ({"user": ["ann"] * 3}, "data.columns.ids: column 'user' of .* is string; texts need hashing, so"),
            ({"history": [1, 2, 3]}, "data.columns.sequences: column 'history' of .* is int64; a sequence is a list"),
            ({"history": [[1.5]] * 3}, "data.columns.sequences: column 'history' of .* is list<.*double>; a seq"),
        ],
    )
    def test_a_column_of_the_wrong_type_is_named(self, tmp_path: Path, columns: dict[str, Any], problem: str) -> None:
        with pytest.raises(InvalidJob, match=problem):
            parquet(write(tmp_path / "a.parquet", range(3), **columns))

    def test_all_missing_columns_are_named(self, folder: Path) -> None:
        with pytest.raises(InvalidJob) as caught:
            parquet(folder, columns={"label": "click", "ids": ["user", "Item"], "dense": ["weight"]})
        where = f"{folder}/part-2.parquet"
        assert caught.value.problems == [
            f"data.columns.label: {where} has no column 'click'; did you mean 'clicked'?",
            f"data.columns.dense: {where} has no column 'weight'; it has clicked, age, unused, user, item, history",
            f"data.columns.ids: {where} has no column 'Item'; did you mean 'item'?",
        ]

    def test_files_that_differ_are_named(self, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", range(3))
        write(tmp_path / "b.parquet", range(3), item=[1, 2, 3])
        with pytest.raises(InvalidJob, match=r"'item' has texts in .*a.parquet and numbers in .*b.parquet; write"):
            parquet(tmp_path)

    def test_files_that_are_not_there_or_no_parquet_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidJob, match=r"data.path: no \*.parquet files below .*; name a folder that has some"):
            parquet(tmp_path)
        (tmp_path / "a.parquet").write_text("no Parquet")
        with pytest.raises(InvalidJob, match=r"data.path: cannot read .*a.parquet as Parquet: .*; remove or replace"):
            parquet(tmp_path)
        none = {"history": pa.array([], pa.list_(pa.int64())), "item": pa.array([], pa.string())}
        write(tmp_path / "a.parquet", range(0), **none)
        with pytest.raises(InvalidJob, match=r"data.path: no rows in .*a.parquet; name files that have some"):
            parquet(tmp_path)

    def test_a_storage_that_is_not_known_is_named(self) -> None:
        with pytest.raises(InvalidJob, match=r"data.path: cannot read gopher://hole/x: "):
            parquet("gopher://hole/x")

    def test_a_file_that_changes_while_it_is_read_is_named(self, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", range(8), group=4)
        source = parquet(tmp_path)
        write(tmp_path / "a.parquet", range(6), group=3)
        with pytest.raises(OSError, match=r"a.parquet, row group 0 has 3 rows, not 4 any more; start the job again"):
            batches(source)

    def test_a_file_that_is_gone_when_it_is_due_is_named(self, tmp_path: Path) -> None:
        source = parquet(write(tmp_path / "a.parquet", range(3)))
        (tmp_path / "a.parquet").unlink()
        with pytest.raises(OSError, match=r"cannot read .*a.parquet, row group 0: "):
            batches(source)
