"""The database: one SQLite file with a write-ahead log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from service.store.schema import upgrade

_WRITES = "overlane_writes"


class Database:
    """Connections to the record of all jobs."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @classmethod
    async def open(cls, path: Path) -> "Database":
        """Open the file, created or brought up to date if need be.

        Raises `OSError` if the folder cannot be written, `NewerDatabaseError` for a file of a newer version.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        await _migrate(path)
        return cls(_engine(path))

    async def close(self) -> None:
        await self._engine.dispose()

    async def ping(self) -> None:
        """Raise `sqlalchemy.exc.SQLAlchemyError` if the database does not answer."""
        async with self._engine.connect() as connection:
            await connection.execute(text("SELECT count(*) FROM jobs"))

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        async with self._engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """One transaction, committed at the end of the block."""
        async with self._engine.execution_options(**{_WRITES: True}).begin() as connection:
            yield connection


async def _migrate(path: Path) -> None:
    # A migration may replace a table by a copy, and with foreign keys on, the rows that belong to it would be deleted.
    engine = _engine(path, foreign_keys=False, poolclass=NullPool)
    try:
        async with engine.execution_options(**{_WRITES: True}).begin() as connection:
            await connection.run_sync(upgrade, str(path))
    finally:
        await engine.dispose()


def _engine(path: Path, foreign_keys: bool = True, **options: Any) -> AsyncEngine:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", **options)

    def configure(connection: Any, _record: Any) -> None:
        # Python's module would begin transactions itself, and none for changes of tables.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
        cursor.execute("PRAGMA busy_timeout=10000")
        cursor.close()

    event.listen(engine.sync_engine, "connect", configure)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    # A transaction that writes waits for its turn here: one that has read cannot wait any more when it comes to write.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
