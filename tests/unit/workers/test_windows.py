"""Windows of rows: each is read once, while the one before it is trained, and no more of them than two are there."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.workers.clicks import parquet, users, write_files
from workers.sources import windows
from workers.sources.parquet_files import ParquetFiles

GROUPS = 9
WAIT_S = 30


@dataclass
class Reads:
    """The row groups that were asked for. One of them may have to wait, or be gone."""

    groups: list[int] = field(default_factory=list)
    waits: int | None = None
    gone: int | None = None
    go_on: threading.Event = field(default_factory=threading.Event)
    news: threading.Condition = field(default_factory=threading.Condition)

    def note(self, group: int) -> None:
        with self.news:
            self.groups.append(group)
            self.news.notify_all()
        if group == self.waits:
            assert self.go_on.wait(WAIT_S)
        if group == self.gone:
            raise OSError("clicks are gone")

    def await_groups(self, count: int) -> list[int]:
        """The first so many, as soon as they are asked for."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.groups) >= count, WAIT_S)
            return self.groups[:]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found = Reads()
    plain = ParquetFiles.read

    def read(files: ParquetFiles, group: int) -> pa.Table:
        found.note(group)
        table = plain(files, group)
        assert set(table.column_names) == {"clicked", "age", "user", "item", "history"}
        return table

    monkeypatch.setattr(ParquetFiles, "read", read)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "clicks")


@pytest.mark.parametrize("foresight", [1, 256])
def test_a_row_group_is_read_once_and_ahead_of_its_rows(
    folder: Path, reads: Reads, foresight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if more steps than it looks at lie between it and the one before."""
    monkeypatch.setattr(windows, "_FORESIGHT", foresight)
    stream = parquet(folder).train_batches(0, 1, 1, 1, 0)
    trained = []
    for groups, rows in enumerate((4, 4, 2), start=2):
        trained += [next(stream) for _ in range(rows)]
        assert reads.await_groups(groups) == list(range(groups))
    trained += list(stream)
    assert reads.groups == list(range(GROUPS))
    assert [user for samples in trained for user in users(samples)] == list(range(30))


def test_the_rows_of_a_window_do_not_wait_for_the_next_one(folder: Path, reads: Reads) -> None:
    reads.waits = 1
    stream = parquet(folder).train_batches(0, 1, 2, 1, 0)
    assert users(next(stream)) == [0, 1]
    assert reads.await_groups(2) == [0, 1]
    assert users(next(stream)) == [2, 3]
    reads.go_on.set()
    assert len(list(stream)) == 13
    assert reads.groups == list(range(GROUPS))


def test_a_file_that_is_gone_ends_the_stream_where_its_rows_would_have_come(folder: Path, reads: Reads) -> None:
    reads.gone = 1
    stream = parquet(folder).train_batches(0, 1, 4, 1, 0)
    assert users(next(stream)) == [0, 1, 2, 3]
    reads.await_groups(2)
    with pytest.raises(OSError, match="clicks are gone"):
        next(stream)


def test_no_more_than_two_windows_are_there(folder: Path, reads: Reads) -> None:
    source = parquet(folder, order="shuffled", params={"shuffle_row_groups": 2})
    stream = source.train_batches(0, 1, 1, 1, 0)
    next(stream)
    assert len(reads.await_groups(4)) == 4
    list(stream)
    assert sorted(reads.groups) == list(range(GROUPS))


def test_the_next_epoch_is_read_ahead_too(folder: Path, reads: Reads) -> None:
    source = parquet(folder, order="shuffled", params={"shuffle_row_groups": 100})
    stream = source.train_batches(0, 1, 30, 2, 0)
    next(stream)
    assert len(reads.await_groups(2 * GROUPS)) == 2 * GROUPS
    assert sorted(users(next(stream))) == list(range(30))
    assert len(reads.groups) == 2 * GROUPS


def test_a_rank_reads_the_row_groups_of_its_rows(folder: Path, reads: Reads) -> None:
    """Ahead too: the rows of the other rank lie between these groups and the next ones."""
    stream = parquet(folder).train_batches(1, 2, 5, 1, 0)
    assert users(next(stream)) == [5, 6, 7, 8, 9]
    reads.await_groups(3)
    list(stream)
    own = [row for start in (5, 15, 25) for row in range(start, start + 5)]
    assert reads.groups == [group for group, rows in enumerate(group_rows(folder)) if set(rows) & set(own)]


def group_rows(folder: Path) -> list[range]:
    """The rows of each row group, in the order of the files."""
    sizes = parquet(folder)._groups.rows.tolist()  # type: ignore[attr-defined]
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
