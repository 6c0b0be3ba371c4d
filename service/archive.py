"""The step samples of jobs that ended long ago: one Parquet file for each job."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from workers.reports import StepSample
from workers.telemetry.archive import SCHEMA, table_of


class StepArchive:
    """A folder with a file `<job id>.parquet` for each job, whose columns are those of `workers.telemetry.archive`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.parquet"

    @contextmanager
    def writing(self, job_id: str) -> Iterator["ArchiveFile"]:
        """The file of a job, which is there, whole and on the disk, once the block has ended without an error.

        Raises `OSError` or `pyarrow.ArrowException` if the disk does not take it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f"{job_id}.partial"
        try:
            with partial.open("wb") as file:
                with pq.ParquetWriter(file, SCHEMA) as writer:
                    yield ArchiveFile(writer)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path(job_id))
            _to_disk(self._folder)
        finally:
            partial.unlink(missing_ok=True)

    def forget(self, job_id: str) -> None:
        self.path(job_id).unlink(missing_ok=True)


class ArchiveFile:
    """A file that is being written."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add(self, samples: Sequence[StepSample]) -> None:
        """Append samples as a row group."""
        self._writer.write_table(table_of(list(samples)))


def _to_disk(folder: Path) -> None:
    """A new name in a folder is only safe once the folder itself is written."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
