"""From the monitor's outbox into the storage of the run, when there is no control plane to keep the reports.

Step samples become Parquet files in the folder `telemetry` beside the checkpoints: one row for each rank and step, in
parts that are written while the job runs, so that whatever is killed costs the last part at most. Plan, result and
failure stand in `_run.json`, which readers that take the folder for one table pass over. A step that was done again
after a restart has a row for each `attempt`.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import structlog

from workers.reports import ReportBatch, RunRecord, StepSample
from workers.telemetry.outbox import Outbox

log = structlog.get_logger(__name__)

_COLLECTIVE = pa.struct(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("partition", pa.string()),
        pa.field("bytes_sent", pa.int64(), nullable=False),
        pa.field("bytes_received", pa.int64(), nullable=False),
        pa.field("ms", pa.float64(), nullable=False),
        pa.field("exposed_ms", pa.float64(), nullable=False),
    ]
)

SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("clock_offset_ms", pa.float64()),
        pa.field("clock_uncertainty_ms", pa.float64()),
        pa.field("samples", pa.int64(), nullable=False),
        pa.field("loss", pa.float64()),
        pa.field("data_wait_ms", pa.float64(), nullable=False),
        pa.field("step_ms", pa.float64(), nullable=False),
        pa.field("compute_ms", pa.float64(), nullable=False),
        pa.field("comm_ms", pa.float64(), nullable=False),
        pa.field("exposed_ms", pa.float64(), nullable=False),
        pa.field("hidden_ms", pa.float64(), nullable=False),
        pa.field("comm_overlap", pa.float64()),
        pa.field("ids", pa.int64(), nullable=False),
        pa.field("overlapped_ids", pa.int64()),
        pa.field("id_overlap", pa.float64()),
        pa.field("collectives", pa.list_(pa.field("item", _COLLECTIVE, nullable=False)), nullable=False),
    ]
)
"""The columns of a part: the fields of `StepSample`, in their units. Add to them; never rename or reorder."""

_PART_S = 15.0
_PART_SAMPLES = 10_000


@dataclass(frozen=True)
class ReportFolder:
    """Where the reports of a job go without a control plane: `telemetry` in its folder of the run's storage.

    `storage` is a path or a URI, as Ray Train takes it.
    """

    storage: str
    job_id: str

    def __str__(self) -> str:
        """For people: without keys and options of a URI, which are nobody's business."""
        if "://" not in self.storage:
            return f"{self.storage.rstrip('/')}/{self.job_id}/telemetry"
        kind, _, rest = self.storage.partition("?")[0].partition("://")
        host, slash, path = rest.partition("/")
        place = f"{kind}://{host.rpartition('@')[2]}{slash}{path}"
        return f"{place.rstrip('/')}/{self.job_id}/telemetry"

    def open(self) -> tuple[Any, str]:
        """The `pyarrow.fs.FileSystem` and the path of the folder in it, which is created. Raises as `Writer` does."""
        filesystem, root = pyarrow.fs.FileSystem.from_uri(self.storage)
        path = f"{root.rstrip('/')}/{self.job_id}/telemetry"
        filesystem.create_dir(path, recursive=True)
        return filesystem, path


def table_of(samples: list[StepSample]) -> Any:
    """Samples as a `pyarrow.Table` with the columns of `SCHEMA`."""
    rows = [{**vars(sample), "collectives": [vars(part) for part in sample.collectives]} for sample in samples]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


class Writer:
    """Writes whole files into a folder: under another name first, so that a reader never finds half a file.

    Every method blocks, and raises OSError or `pyarrow.ArrowException` if the storage does not take the file. Parts are
    named after this writer and numbered, so that one that comes after it, in a monitor that was started again,
    overwrites none of them.
    """

    def __init__(self, folder: ReportFolder) -> None:
        self._folder = folder
        self._name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:6]}"
        self._parts = 0
        self._storage: tuple[Any, str] | None = None

    def write_part(self, samples: list[StepSample]) -> None:
        """Write the next part."""
        content = pa.BufferOutputStream()
        pq.write_table(table_of(samples), content)
        self._write(f"steps-{self._name}-{self._parts:06d}.parquet", content.getvalue())
        self._parts += 1

    def write_record(self, record: RunRecord) -> None:
        """Write or replace `_run.json`."""
        self._write("_run.json", record.model_dump_json(indent=2).encode())

    def _write(self, name: str, content: Any) -> None:
        if self._storage is None:
            self._storage = self._folder.open()
        filesystem, path = self._storage
        unfinished = f"{path}/.{name}.unfinished"
        try:
            with filesystem.open_output_stream(unfinished) as stream:
                stream.write(content)
            filesystem.move(unfinished, f"{path}/{name}")
        except (OSError, pa.ArrowException):
            self._remove(unfinished)
            raise

    def _remove(self, path: str) -> None:
        """Give back the room that half a file takes on a full disk, if the storage lets us."""
        assert self._storage is not None
        try:
            self._storage[0].delete_file(path)
        except (OSError, pa.ArrowException) as error:
            log.debug("an unfinished file stays", path=path, error=str(error))


class Archive:
    """Empties an outbox into a folder. What the storage does not take is given up and counted: training goes first."""

    gather_s = _PART_S
    pace_s = 0.0

    def __init__(self, outbox: Outbox, folder: ReportFolder, writer: Writer | None = None) -> None:
        self._outbox, self._folder = outbox, folder
        self._writer = writer or Writer(folder)
        self._record = self._written = RunRecord(job_id=folder.job_id)
        self._failing = False

    async def drain(self) -> bool:
        """Write until the outbox is empty. Always true: the run always wants its reports."""
        while (batch := self._outbox.take(_PART_SAMPLES)) is not None:
            # In a thread: a network file system may hang, and ranks and driver still want answers.
            if not await asyncio.to_thread(self._write, batch):
                self._outbox.give_up(batch)
        return True

    def _write(self, batch: ReportBatch) -> bool:
        """Whether the samples of the batch were taken. What else it tells is tried again with the next one."""
        self._record = self._record.after(batch)
        part_taken = not batch.samples
        try:
            if batch.samples:
                self._writer.write_part(batch.samples)
                part_taken = True
            if self._record != self._written:
                self._writer.write_record(self._record)
                self._written = self._record
        except (OSError, pa.ArrowException) as error:
            if not self._failing:
                log.error("reports cannot be written and get lost", folder=str(self._folder), error=str(error))
            self._failing = True
        else:
            if self._failing:
                log.info("reports are written again", folder=str(self._folder))
            self._failing = False
        return part_taken
