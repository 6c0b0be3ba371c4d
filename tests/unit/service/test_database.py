"""The database file across versions."""

import sqlite3
from pathlib import Path

import pytest

from service.store.database import Database
from service.store.jobs import JobStore
from service.store.steps import StepStore
from tests.unit.service.fakes import START, sample
from workers.job import parse_job
from workers.reports import ReportBatch

pytestmark = pytest.mark.anyio


async def test_a_file_of_an_earlier_version_gets_the_columns_that_came_later(tmp_path: Path) -> None:
    path = tmp_path / "overlane.db"
    await (await Database.open(path)).close()
    with sqlite3.connect(path) as old:
        for column in ("clock_offset_ms", "clock_uncertainty_ms"):
            old.execute(f"ALTER TABLE steps DROP COLUMN {column}")
    old.close()
    database = await Database.open(path)
    try:
        await JobStore(database).add("job-1", parse_job({"name": "tiny"}), START, None)
        batch = ReportBatch.model_validate({"samples": [sample(0, 0, clock_offset_ms=2.5, clock_uncertainty_ms=0.5)]})
        await StepStore(database).record("job-1", batch)
        assert await StepStore(database).of_step("job-1", 0) == batch.samples
    finally:
        await database.close()
