"""The format of Criteo: what lines become, that reading can begin at any of them, and what is refused."""

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from tests.unit.workers.streams import assert_equal, batches, joined, steps
from workers.job import DataSpec, InvalidJob
from workers.sources import check, lines, open_source
from workers.sources.bad_rows import BadRows, NoGoodRows, TooManyBadRows
from workers.sources.hashing import hash_numbers, to_rows
from workers.sources.schema import Consumed, Feature, Samples, Source, Table

# Few lines make a group, so that small files have many.
GROUP = 4


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINES", GROUP)


def line(number: int, **changes: str) -> str:
    """Line `number`, which its first dense value tells; `changes` are I2=... and the like."""
    fields = {"label": str(number % 2), "I1": str(number)}
    fields |= {f"I{index}": str(number * index % 50) for index in range(2, 14)}
    fields |= {f"C{index}": f"{number * 2654435761 * index % 2**32:08x}" for index in range(1, 27)}
    assert changes.keys() <= fields.keys()
    return "\t".join((fields | changes).values())


def write(path: Path, *content: str, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{each}{end}" for each in content).encode())
    return path


def criteo(path: Path | str, **changes: Any) -> Source:
    params = {"holdout": 0, **changes.pop("params", {})}
    return open_source(DataSpec(**({"source": "criteo-tsv", "path": str(path), "params": params} | changes)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    first = 0
    for day, count in {"day_2": 10, "day_10": 7, "day_11": 13}.items():
        write(tmp_path / "days" / day, *(line(number) for number in range(first, first + count)))
        first += count
    return tmp_path / "days"


TOTAL = 30


def numbers(samples: Samples) -> list[int]:
    return [round(math.expm1(value)) for value in samples.dense[:, 0].tolist()]


class TestValues:
    def test_a_line_becomes_a_sample(self, tmp_path: Path) -> None:
        path = write(tmp_path / "day_0", line(3), line(4, I2="-7", I3="0", C1="ffffffff", C2="A0"))
        (samples,) = batches(criteo(path))
        assert samples.labels.tolist() == [1, 0]
        assert samples.dense[:, :3].tolist() == [
            [np.float32(math.log(1 + number)) for number in row] for row in ((3, 6, 9), (4, 0, 0))
        ]
        assert samples.dense.shape == (2, 13)
        for index in range(3, 27):
            hashes = hash_numbers(np.array([number * 2654435761 * index % 2**32 for number in (3, 4)]))
            np.testing.assert_array_equal(samples.ids[f"C{index}"].values, to_rows(hashes, 100_000))
        assert samples.ids["C1"].values[1] == to_rows(hash_numbers(np.array([2**32 - 1])), 100_000)[0]
        assert samples.ids["C2"].values[1] == to_rows(hash_numbers(np.array([0xA0])), 100_000)[0]
        assert samples.ids["C2"].lengths.tolist() == [1, 1]

    def test_what_is_missing_has_a_value_of_its_own(self, tmp_path: Path) -> None:
        (samples,) = batches(criteo(write(tmp_path / "day_0", line(3, I1="", I13="", C1="", C26=""))))
        assert samples.dense[0, [0, 12]].tolist() == [0, 0]
        assert samples.dense[0, 1] > 0
        assert (samples.ids["C1"].values[0], samples.ids["C26"].values[0]) == (0, 0)

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_the_last_line_may_have_no_end(self, tmp_path: Path, end: str) -> None:
        write(tmp_path / "day_0", *(line(number, C26="") for number in range(5)), end=end)
        (tmp_path / "day_1").write_text(line(5))
        (samples,) = batches(criteo(tmp_path), size=6)
        assert numbers(samples) == list(range(6))
        assert samples.ids["C26"].values[:5].tolist() == [0] * 5

    @pytest.mark.parametrize(
        ("rows", "tables"),
        [
            (500, [500] * 26),
            ({"C2": 7}, [100_000, 7] + [100_000] * 24),
            (list(range(2, 28)), list(range(2, 28))),
        ],
    )
    def test_each_feature_has_a_table_of_the_chosen_size(self, folder: Path, rows: Any, tables: list[int]) -> None:
        source = criteo(folder, params={"rows": rows})
        assert source.schema.tables == tuple(Table(f"C{index}", count) for index, count in enumerate(tables, 1))
        assert source.schema.features[25] == Feature("C26", "C26")
        assert source.schema.dense == 13
        (samples,) = batches(source, size=TOTAL)
        for name, count in zip(samples.ids, tables, strict=True):
            assert samples.ids[name].values.min() >= 1
            assert samples.ids[name].values.max() < count


class TestOrder:
    @pytest.mark.parametrize("order", ["time", "shuffled"])
    def test_every_line_is_trained_once_in_each_epoch(self, folder: Path, order: str) -> None:
        source = criteo(folder, order=order, params={"shuffle_lines": 8})
        trained = numbers(joined(steps(source, 2, size=4, epochs=2)))
        assert [sorted(trained[:TOTAL]), sorted(trained[TOTAL:])] == [list(range(TOTAL))] * 2
        assert (trained[:TOTAL] == list(range(TOTAL))) == (order == "time")
        assert (trained[:TOTAL] == trained[TOTAL:]) == (order == "time")

    @pytest.mark.parametrize("order", ["time", "shuffled"])
    def test_a_run_that_starts_at_any_step_sees_the_same_batches(self, folder: Path, order: str) -> None:
        source = criteo(folder, order=order)
        for rank in (0, 1):
            whole = batches(source, rank, 2, size=2, epochs=2)
            for step in range(len(whole) + 1):
                rest = batches(source, rank, 2, size=2, epochs=2, start=Consumed(step, 4 * step))
                for one, two in zip(whole[step:], rest, strict=True):
                    assert_equal(one, two)

    @pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9])
    @pytest.mark.parametrize("block", [1, 100, 10_000])
    def test_lines_are_found_wherever_a_block_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, block: int
    ) -> None:
        monkeypatch.setattr(lines, "_BLOCK", block)
        path = write(tmp_path / "day_0", *(line(number) for number in range(count)))
        assert numbers(joined(steps(criteo(path), 1, size=1))) == list(range(count))

    def test_the_last_lines_are_held_out(self, folder: Path) -> None:
        source = criteo(folder, params={"holdout": 0.2})
        assert numbers(joined(steps(source, 1, size=4))) == list(range(24))
        held_out = [each for rank in (0, 1) for each in source.holdout(rank, 2, 2)]
        assert [number for each in held_out for number in numbers(each.samples)[: each.valid]] == list(range(24, 30))


class TestBadLines:
    BAD = {  # noqa: RUF012
        "39 columns instead of 40": line(1).rpartition("\t")[0],
        "41 columns instead of 40": line(1) + "\t",
        "1 columns instead of 40": "",
        "label is '2', not 0 or 1": line(1, label="2"),
        "label is '', not 0 or 1": line(1, label=""),
        "label is '01', not 0 or 1": line(1, label="01"),
        "I2 is '1.5', not a whole number": line(1, I2="1.5"),
        "I13 is '-', not a whole number": line(1, I13="-"),
        "I2 is '1234567890123456789', not a whole number": line(1, I2="1234567890123456789"),
        "C3 is 'xyz', not hexadecimal": line(1, C3="xyz"),
        "C26 is '00000000000000000', not hexadecimal": line(1, C26="0" * 17),
    }

    @pytest.fixture(params=BAD.items(), ids=list(BAD))
    def bad(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    def test_a_bad_line_is_named_and_ends_the_job(self, tmp_path: Path, bad: tuple[str, str]) -> None:
        reason, text = bad
        write(tmp_path / "day_0", *(line(number) for number in range(6)))
        write(tmp_path / "day_1", line(6), line(7), text, line(8))
        with pytest.raises(TooManyBadRows) as caught:
            batches(criteo(tmp_path), size=10)
        assert str(caught.value).endswith(f"The last ones: {tmp_path}/day_1, line 3: {reason}")

    def test_the_others_are_trained_as_if_it_were_not_there(self, tmp_path: Path, bad: tuple[str, str]) -> None:
        write(tmp_path / "bad", line(6), bad[1], line(8))
        write(tmp_path / "good", line(6), line(8))
        source = criteo(tmp_path / "bad", max_bad_rows=1)
        (samples,), (good,) = batches(source), batches(criteo(tmp_path / "good"))
        assert samples.taken == 3
        assert_equal(samples, Samples(good.labels, good.ids, good.dense, rows=3))
        assert isinstance(source, BadRows)
        assert source.bad_rows == 1

    def test_a_batch_without_a_good_line_is_an_error(self, tmp_path: Path) -> None:
        path = write(tmp_path / "day_0", *["what is this?"] * 4)
        with pytest.raises(NoGoodRows, match="all 4 rows of a batch are bad"):
            batches(criteo(path, max_bad_rows=10))


class TestFaults:
    @pytest.mark.parametrize(
        ("params", "problem"),
        [
            ({"rows": [5, 6]}, "data.params.rows: a list has a number for each of the 26 features, this one has 2"),
            ({"rows": {"C27": 5}}, "data.params.rows: no feature 'C27'; they are C1 to C26"),
            ({"rows": 1}, "data.params.rows: a table has at least 2 rows"),
            ({"rows": "many"}, "data.params.rows: Input should be a valid tuple"),
            ({"row": 5}, r"data.params.row: unknown field; did you mean 'rows'\?"),
        ],
    )
    def test_parameters_that_do_not_fit_are_refused(self, folder: Path, params: Any, problem: str) -> None:
        with pytest.raises(InvalidJob, match=problem):
            check(DataSpec(source="criteo-tsv", path=str(folder), params=params))

    def test_columns_are_known(self, folder: Path) -> None:
        columns: Any = {"label": "y", "ids": ["x"]}
        with pytest.raises(InvalidJob, match=r"data.columns: source 'criteo-tsv' has none; leave it out"):
            check(DataSpec(source="criteo-tsv", path=str(folder), columns=columns))

    def test_compressed_files_are_refused(self, tmp_path: Path) -> None:
        for name in ("day_0.gz", "day_0"):
            (tmp_path / name).write_bytes(gzip.compress(line(1).encode()))
        with pytest.raises(InvalidJob, match=r"data.path: reading cannot begin within .*day_0.gz; unpack it with"):
            check(DataSpec(source="criteo-tsv", path=str(tmp_path / "day_0.gz")))
        with pytest.raises(InvalidJob, match=r"data.path: .*day_0 is compressed; unpack it with gunzip"):
            criteo(tmp_path)

    def test_files_without_lines_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "day_0").touch()
        with pytest.raises(InvalidJob, match=r"data.path: .*day_0 is empty; name files that have lines"):
            criteo(tmp_path)

    def test_an_empty_day_is_no_fault(self, folder: Path) -> None:
        (folder / "day_3").touch()
        assert numbers(joined(steps(criteo(folder), 1, size=1))) == list(range(TOTAL))

    def test_a_file_that_changes_while_it_is_read_is_named(self, tmp_path: Path) -> None:
        path = write(tmp_path / "day_0", line(1), line(2))
        source = criteo(path)
        write(path, line(1))
        with pytest.raises(OSError, match="day_0 has changed since the job opened it; start the job again"):
            batches(source)


def test_a_long_pass_over_the_files_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_LONG_PASS", 1)
    with capture_logs() as logs:
        criteo(folder)
    assert [log["percent"] for log in logs] == [30, 50, 100]
    assert logs[-1]["read_bytes"] == logs[-1]["of_bytes"] == sum(path.stat().st_size for path in folder.iterdir())
