"""The database: one SQLite file with a write-ahead log."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from service.store.tables import metadata


class Database:
    """Connections to the record of all jobs."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @classmethod
    async def open(cls, path: Path) -> "Database":
        """Open the file and create what is missing in it. Raises `OSError` if the folder cannot be written."""
        path.parent.mkdir(parents=True, exist_ok=True)
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        event.listen(engine.sync_engine, "connect", _configure)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.run_sync(_add_missing_columns)
        return cls(engine)

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
        async with self._engine.begin() as connection:
            yield connection


def _add_missing_columns(connection: Connection) -> None:
    """Bring the tables of a file that an earlier version has made up to date."""
    found = inspect(connection)
    for table in metadata.sorted_tables:
        known = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                kind = column.type.compile(connection.dialect)
                connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"))


def _configure(connection: sqlite3.Connection, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()
