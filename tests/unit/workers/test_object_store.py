"""Files in an object store: the same batches as from a disk, here from a stand-in for S3 on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from tests.unit.workers.clicks import TOTAL, parquet, write_files
from tests.unit.workers.streams import assert_equal, joined, steps
from tests.unit.workers.test_criteo import criteo, line, write
from workers.job import InvalidJob


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"endpoint_override={host}:{port}&scheme=http"
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def upload(folder: Path, bucket: str, endpoint: str) -> str:
    """The folder as a bucket; returns the path of a job."""
    uri = f"s3://{bucket}/data?{endpoint}&allow_bucket_creation=true"
    store, inner = fs.FileSystem.from_uri(uri)
    store.create_dir(bucket)
    fs.copy_files(str(folder), inner, fs.LocalFileSystem(), store)
    return f"s3://{bucket}/data?{endpoint}"


@pytest.mark.parametrize("order", ["time", "shuffled"])
def test_parquet_in_an_object_store(tmp_path: Path, endpoint: str, order: str) -> None:
    folder = write_files(tmp_path / "clicks")
    path = upload(folder, f"clicks-{order}", endpoint)
    there, here = (steps(parquet(where, order=order), 2, size=4, epochs=2) for where in (path, folder))
    for one, two in zip(there, here, strict=True):
        assert_equal(one, two)
    assert joined(here).taken == 2 * TOTAL


def test_lines_in_an_object_store(tmp_path: Path, endpoint: str) -> None:
    write(tmp_path / "days" / "day_0", *(line(number) for number in range(9)))
    write(tmp_path / "days" / "day_1", *(line(number) for number in range(9, 14)))
    path = upload(tmp_path / "days", "days", endpoint)
    for one, two in zip(*(steps(criteo(where), 2, size=2) for where in (path, tmp_path / "days")), strict=True):
        assert_equal(one, two)


def test_what_is_not_there_is_named(tmp_path: Path, endpoint: str) -> None:
    upload(tmp_path, "empty", endpoint)
    for bucket in ("empty", "no-such-bucket"):
        with pytest.raises(InvalidJob, match=f"data.path: no such file or folder: s3://{bucket}/clicks; "):
            parquet(f"s3://{bucket}/clicks?{endpoint}")


def test_a_bad_row_is_named_with_its_bucket(tmp_path: Path, endpoint: str) -> None:
    write(tmp_path / "days" / "day_0", line(0), "nothing")
    path = upload(tmp_path / "days", "bad-days", endpoint)
    with pytest.raises(Exception, match="s3://bad-days/data/day_0, line 2: 1 columns instead of 40"):
        steps(criteo(path), 1, size=2)
