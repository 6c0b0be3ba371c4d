"""Databases across versions."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine

from service.store.database import Database
from service.store.jobs import JobStore
from service.store.schema import NewerDatabaseError
from service.store.steps import StepStore
from service.store.tables import metadata
from tests.unit.service.fakes import START, sample
from workers.job import parse_job
from workers.reports import ReportBatch

pytestmark = pytest.mark.anyio

BEFORE_MIGRATIONS = Path(__file__).parent / "before_migrations.sql"
"""The schema of a file of the last version without migrations, and one job in it."""


def _unversioned(path: Path, *changes: str) -> None:
    """A file as the version before made it, with `changes` on top."""
    with sqlite3.connect(path) as old:
        old.executescript(BEFORE_MIGRATIONS.read_text())
        for change in changes:
            old.execute(change)
    old.close()


def _differences(connection: Connection) -> list[Any]:
    return compare_metadata(MigrationContext.configure(connection), metadata)


def _differences_of_file(path: Path) -> list[Any]:
    engine = create_engine(f"sqlite:///{path}")
    try:
        with engine.connect() as connection:
            return _differences(connection)
    finally:
        engine.dispose()


async def _use(path: Path) -> None:
    """Open the file and store something in it."""
    database = await Database.open(path)
    try:
        await JobStore(database).add("job-1", parse_job({"name": "tiny"}), START, None)
        batch = ReportBatch.model_validate({"samples": [sample(0, 0, clock_offset_ms=2.5, clock_uncertainty_ms=0.5)]})
        await StepStore(database).record("job-1", batch)
        assert await StepStore(database).of_step("job-1", 0) == batch.samples
    finally:
        await database.close()


async def test_migrations_of_a_new_database_make_the_tables_that_the_code_uses(tmp_path: Path) -> None:
    path = tmp_path / "overlane.db"
    await _use(path)
    assert _differences_of_file(path) == []


async def test_a_file_from_before_migrations_is_brought_up_to_date_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "overlane.db"
    _unversioned(path)
    for _ in range(2):
        database = await Database.open(path)
        try:
            kept = await JobStore(database).get("job-0")
            assert kept is not None
            assert (kept.name, kept.submitted_at) == ("old", START)
            assert [step.step for step in await StepStore(database).of_step("job-0", 3)] == [3]
        finally:
            await database.close()
        assert _differences_of_file(path) == []


async def test_a_file_of_a_still_earlier_version_gets_the_tables_and_columns_that_came_later(tmp_path: Path) -> None:
    path = tmp_path / "overlane.db"
    _unversioned(
        path,
        "ALTER TABLE steps DROP COLUMN clock_offset_ms",
        "ALTER TABLE steps DROP COLUMN clock_uncertainty_ms",
        "DROP TABLE worker_groups",
    )
    await _use(path)
    assert _differences_of_file(path) == []


async def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "overlane.db"
    await _use(path)
    with sqlite3.connect(path) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
        newer.execute("ALTER TABLE jobs ADD COLUMN mood TEXT")
    newer.close()
    before = path.read_bytes()
    with pytest.raises(NewerDatabaseError, match=r"overlane\.db has schema 9999, .* newer version"):
        await Database.open(path)
    assert path.read_bytes() == before


async def test_a_migration_that_fails_half_way_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "overlane.db"
    _unversioned(path, "DROP TABLE worker_groups")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("alembic.runtime.migration.HeadMaintainer.update_to_step", fail)
        with pytest.raises(OSError, match="full"):
            await Database.open(path)
    with sqlite3.connect(path) as left:
        tables = {name for (name,) in left.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    left.close()
    assert "jobs" in tables
    assert tables.isdisjoint({"worker_groups", "alembic_version"})
