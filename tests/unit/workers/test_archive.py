"""Reports in the storage of the run: Parquet that gives back what came in, and a storage that takes nothing."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs
from structlog.testing import capture_logs

from pipeline.report import CollectiveName, CollectiveReport, Partition
from tests.unit.workers.samples import sample
from workers.reports import JobFailure, JobPlan, JobResult, RunRecord, StepSample
from workers.telemetry.archive import SCHEMA, Archive, ReportFolder, Writer, table_of
from workers.telemetry.outbox import Outbox

PLAN = JobPlan(steps=3, world_size=2, prioritized={"embeddings": "row_wise"}, not_prioritized={})
RESULT = JobResult(steps=3, samples=24, seconds=1.0, loss=0.5, metrics={"auc": 0.7}, checkpoint=None)
FULL = sample(
    7,
    rank=3,
    attempt=2,
    time=datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
    clock_offset_ms=-1.5,
    clock_uncertainty_ms=0.25,
    data_wait_ms=0.125,
    collectives=[
        CollectiveReport(name=name, partition=partition, bytes_sent=2**40, bytes_received=0, ms=1 / 3, exposed_ms=0.1)
        for name in CollectiveName
        for partition in (None, Partition.OL, Partition.NOL)
    ],
)
EMPTY = sample(8, loss=None, comm_overlap=None, overlapped_ids=None, id_overlap=None, collectives=())


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "job-1" / "telemetry").glob("steps-*.parquet"))


def stored(folder: Path) -> list[StepSample]:
    """All rows, validated as samples. Unknown columns are refused."""
    rows: list[dict[str, Any]] = []
    for part in parts(folder):
        table = pq.read_table(part)
        assert table.schema.equals(SCHEMA), table.schema
        rows += table.to_pylist()
    assert all(row.keys() == StepSample.model_fields.keys() for row in rows)
    return [StepSample.model_validate(row) for row in rows]


def record(folder: Path) -> RunRecord:
    return RunRecord.model_validate_json((folder / "job-1" / "telemetry" / "_run.json").read_bytes())


def archive(folder: Path, outbox: Outbox) -> Archive:
    return Archive(outbox, ReportFolder(str(folder), "job-1"))


def test_rows_are_the_samples_that_came_in(tmp_path: Path) -> None:
    outbox = Outbox()
    outbox.add_samples(0, 0, [FULL, EMPTY], 2)
    assert asyncio.run(archive(tmp_path, outbox).drain())
    assert stored(tmp_path) == [FULL, EMPTY]
    assert stored(tmp_path)[0].time == FULL.time


def test_there_is_a_column_for_everything_that_a_sample_says() -> None:
    assert set(SCHEMA.names) == set(StepSample.model_fields)
    inner = SCHEMA.field("collectives").type.value_type
    assert [inner.field(index).name for index in range(inner.num_fields)] == list(CollectiveReport.model_fields)


def test_a_part_without_any_null_has_the_same_columns() -> None:
    assert table_of([FULL]).schema.equals(table_of([EMPTY]).schema)


def test_every_drain_leaves_whole_parts_and_nothing_else(tmp_path: Path) -> None:
    outbox = Outbox()
    kept = archive(tmp_path, outbox)
    for step in range(3):
        outbox.add_samples(0, 0, [sample(step)], step + 1)
        asyncio.run(kept.drain())
    assert [each.step for each in stored(tmp_path)] == [0, 1, 2]
    assert len(parts(tmp_path)) == 3
    assert len(list((tmp_path / "job-1" / "telemetry").iterdir())) == 3


def test_many_samples_go_into_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.telemetry.archive._PART_SAMPLES", 2)
    outbox = Outbox()
    outbox.add_samples(0, 0, [sample(step) for step in range(5)], 5)
    asyncio.run(archive(tmp_path, outbox).drain())
    assert [pq.read_metadata(part).num_rows for part in parts(tmp_path)] == [2, 2, 1]
    assert [each.step for each in stored(tmp_path)] == [0, 1, 2, 3, 4]


def test_a_monitor_that_comes_after_overwrites_nothing(tmp_path: Path) -> None:
    for step in range(3):
        outbox = Outbox()
        outbox.add_samples(0, 0, [sample(step)], step + 1)
        asyncio.run(archive(tmp_path, outbox).drain())
    assert sorted(each.step for each in stored(tmp_path)) == [0, 1, 2]


@pytest.mark.parametrize("end", [RESULT, JobFailure(message="rank 1: no", traceback="...")])
def test_plan_and_end_stand_together(tmp_path: Path, end: JobResult | JobFailure) -> None:
    outbox = Outbox()
    kept = archive(tmp_path, outbox)
    outbox.add(PLAN)
    asyncio.run(kept.drain())
    assert record(tmp_path) == RunRecord(job_id="job-1", plan=PLAN)
    outbox.add_samples(0, 0, [], 4)
    outbox.add(end)
    asyncio.run(kept.drain())
    told = {"result": end} if isinstance(end, JobResult) else {"failure": end}
    assert record(tmp_path) == RunRecord(job_id="job-1", plan=PLAN, dropped=4, **told)


def test_a_storage_that_takes_nothing_costs_samples_that_are_counted_and_is_told_of_once(tmp_path: Path) -> None:
    outbox = Outbox()
    kept = archive(tmp_path, outbox)
    (tmp_path / "job-1").write_text("not a folder")
    with capture_logs() as logs:
        outbox.add(PLAN)
        for step in range(3):
            outbox.add_samples(0, 0, [sample(step)], step + 1)
            assert asyncio.run(kept.drain())
    assert outbox.dropped == 3
    assert [entry["log_level"] for entry in logs] == ["error"]
    assert logs[0]["folder"] == f"{tmp_path}/job-1/telemetry"
    (tmp_path / "job-1").unlink()
    outbox.add_samples(0, 0, [sample(3)], 4)
    with capture_logs() as logs:
        asyncio.run(kept.drain())
    assert [each.step for each in stored(tmp_path)] == [3]
    assert record(tmp_path) == RunRecord(job_id="job-1", plan=PLAN, dropped=3)
    assert [entry["log_level"] for entry in logs] == ["info"]


def test_half_a_file_is_never_found_and_gives_its_room_back(tmp_path: Path) -> None:
    """The disk is full when the content is there but cannot get its name."""
    folder = ReportFolder(str(tmp_path), "job-1")
    writer = Writer(folder)
    writer.write_part([FULL])
    (first,) = parts(tmp_path)
    second = first.with_name(first.name.replace("000000", "000001"))
    second.mkdir()
    (second / "in the way").touch()
    with pytest.raises(OSError, match="000001"):
        writer.write_part([EMPTY])
    assert sorted(first.parent.iterdir()) == [first, second]


def test_an_object_store_takes_parts_and_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        storage = f"s3://key:secret@reports/runs?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        store, _ = fs.FileSystem.from_uri(f"{storage}&allow_bucket_creation=true")
        store.create_dir("reports")
        outbox = Outbox()
        outbox.add_samples(0, 0, [FULL, EMPTY], 2)
        for report in (PLAN, RESULT):
            outbox.add(report)
            asyncio.run(Archive(outbox, ReportFolder(storage, "job-1")).drain())
        found = store.get_file_info(fs.FileSelector("reports/runs/job-1/telemetry"))
        run, (part,) = "_run.json", [each.base_name for each in found if each.base_name != "_run.json"]
        read = pq.read_table(f"reports/runs/job-1/telemetry/{part}", filesystem=store, schema=SCHEMA)
        assert [StepSample.model_validate(row) for row in read.to_pylist()] == [FULL, EMPTY]
        with store.open_input_stream(f"reports/runs/job-1/telemetry/{run}") as stream:
            assert RunRecord.model_validate_json(stream.read()).result == RESULT
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("storage", "where"),
    [
        ("/runs/", "/runs/job-1/telemetry"),
        ("/odd?/runs", "/odd?/runs/job-1/telemetry"),
        ("s3://bucket/runs", "s3://bucket/runs/job-1/telemetry"),
        ("s3://bucket", "s3://bucket/job-1/telemetry"),
        ("s3://key:se%2Fcret@bucket/runs?region=eu-1", "s3://bucket/runs/job-1/telemetry"),
        ("s3://key:secret@bucket/runs/?region=eu-1", "s3://bucket/runs/job-1/telemetry"),
    ],
)
def test_the_folder_lies_beside_the_checkpoints_and_no_key_is_shown(storage: str, where: str) -> None:
    assert str(ReportFolder(storage, "job-1")) == where
