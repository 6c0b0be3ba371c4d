"""Databases across versions."""

import asyncio
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import URL, Connection, text
from sqlalchemy.exc import DBAPIError

from service.security.audit import AuditAction, Deed
from service.store.database import Database
from service.store.engine import DatabaseUnavailableError, create_engine, parse_url
from service.store.jobs import JobStore
from service.store.schema import NewerDatabaseError
from service.store.steps import StepStore
from service.store.tables import metadata
from tests.unit.service.fakes import START, sample
from tests.unit.service.postgres import PostgresServer
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


async def _check_tables(url: URL) -> None:
    """The database has the tables that the code uses, no more and no less."""
    engine = create_engine(url, for_migrations=True)
    async with engine.connect() as connection:
        assert await connection.run_sync(_differences) == []
    await engine.dispose()


async def _use(url: URL) -> None:
    """Open the database and store something in it."""
    database = await Database.open(url)
    try:
        await JobStore(database).add("job-1", parse_job({"name": "tiny"}), START, None, Deed(None, AuditAction.SUBMIT))
        batch = ReportBatch.model_validate({"samples": [sample(0, 0, clock_offset_ms=2.5, clock_uncertainty_ms=0.5)]})
        await StepStore(database).record("job-1", batch)
        assert await StepStore(database).of_step("job-1", 0) == batch.samples
    finally:
        await database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, path: Path) -> URL:
    """A database that nobody has used yet."""
    if request.param == "sqlite":
        return sqlite(path)
    server = request.getfixturevalue("postgres_server")
    assert isinstance(server, PostgresServer)
    return server.empty()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "overlane.db"


def sqlite(path: Path) -> URL:
    return parse_url(f"sqlite:///{path}")


async def test_migrations_of_a_new_database_make_the_tables_that_the_code_uses(empty: URL) -> None:
    await _use(empty)
    await _check_tables(empty)


async def test_services_that_open_a_new_database_at_the_same_time(empty: URL) -> None:
    async def open_it() -> None:
        await (await Database.open(empty)).close()

    await asyncio.gather(*(open_it() for _ in range(8)))
    await _check_tables(empty)


async def test_a_file_that_is_no_database_is_left_as_it_is(path: Path) -> None:
    path.write_text("notes of mine\n" * 100)
    with pytest.raises(DatabaseUnavailableError, match="not a database; start it, or correct OVERLANE_DATABASE_URL"):
        await Database.open(sqlite(path))
    assert path.read_text() == "notes of mine\n" * 100


async def test_a_file_from_before_migrations_is_brought_up_to_date_and_keeps_its_rows(path: Path) -> None:
    _unversioned(path)
    for _ in range(2):
        database = await Database.open(sqlite(path))
        try:
            kept = await JobStore(database).get("job-0")
            assert kept is not None
            assert (kept.name, kept.submitted_at) == ("old", START)
            assert [step.step for step in await StepStore(database).of_step("job-0", 3)] == [3]
        finally:
            await database.close()
        await _check_tables(sqlite(path))


async def test_idempotency_keys_of_before_belong_to_the_project_of_their_job(path: Path) -> None:
    _unversioned(path, f"INSERT INTO submissions VALUES ('{'k' * 255}', 'f', 'job-0', '{{}}')")
    database = await Database.open(sqlite(path))
    try:
        assert await JobStore(database).submission("k" * 255) is None
        kept = await JobStore(database).submission(f"default/{'k' * 255}")
        assert kept is not None
        assert kept.job_id == "job-0"
    finally:
        await database.close()


async def test_deadlines_of_jobs_that_wait_are_kept(path: Path) -> None:
    _unversioned(path, "UPDATE jobs SET state = 'queued', spec = json_set(spec, '$.queue.deadline_s', 60)")
    database = await Database.open(sqlite(path))
    try:
        waiting = await JobStore(database).get("job-0")
        assert waiting is not None
        assert waiting.starts_by == START + timedelta(seconds=60)
    finally:
        await database.close()


async def test_a_file_of_a_still_earlier_version_gets_the_tables_and_columns_that_came_later(path: Path) -> None:
    _unversioned(
        path,
        "ALTER TABLE steps DROP COLUMN clock_offset_ms",
        "ALTER TABLE steps DROP COLUMN clock_uncertainty_ms",
        "DROP TABLE worker_groups",
    )
    await _use(sqlite(path))
    await _check_tables(sqlite(path))


async def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(empty: URL) -> None:
    await _use(empty)
    engine = create_engine(empty, for_migrations=True)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        await connection.execute(text("ALTER TABLE steps DROP COLUMN loss"))
    with pytest.raises(NewerDatabaseError, match=r"has schema 9999, .* a newer version has used it; install"):
        await Database.open(empty)
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar() == "9999"
        with pytest.raises(DBAPIError, match="loss"):
            await connection.execute(text("SELECT loss FROM steps"))
    await engine.dispose()


async def test_a_migration_that_fails_half_way_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "overlane.db"
    _unversioned(path, "DROP TABLE worker_groups")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr("alembic.runtime.migration.HeadMaintainer.update_to_step", fail)
        with pytest.raises(RuntimeError, match="power"):
            await Database.open(sqlite(path))
    with sqlite3.connect(path) as left:
        tables = {name for (name,) in left.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    left.close()
    assert "jobs" in tables
    assert tables.isdisjoint({"worker_groups", "alembic_version"})
