"""The database: transactions that read, transactions that write, and what happens when it is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from sqlalchemy import URL, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.store.engine import WRITES, DatabaseUnavailableError, create_engine, keep_write_ahead_log, unavailable
from service.store.schema import upgrade
from service.tracing.spans import within

TRANSACTION_TIMEOUT_S = 60.0
"""A connection can break in a way that nobody is told of; whoever waits for it must not wait for ever."""


class Database:
    """Connections to the record of all jobs. Every method raises `DatabaseUnavailableError` while it is away."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._reads = engine
        self._writes = engine.execution_options(**{WRITES: True})
        # Those that wait for SQLite's one place to write look again after pauses, and in no order.
        self._turn = asyncio.Lock() if engine.dialect.name == "sqlite" else nullcontext()

    @classmethod
    async def open(cls, url: URL) -> "Database":
        """Open the database of a URL of `parse_url`, created (SQLite) and brought up to date if need be.

        Raises `OSError` if the folder of a SQLite file cannot be written, `NewerDatabaseError` for a database that a
        newer version has used, `DatabaseUnavailableError`.
        """
        if url.get_backend_name() == "sqlite":
            Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
        await _migrate(url)
        return cls(create_engine(url))

    async def close(self) -> None:
        await self._reads.dispose()

    async def ping(self) -> None:
        async with self.read() as connection:
            await connection.execute(text("SELECT 1 FROM jobs LIMIT 1"))

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """One transaction for statements that change nothing."""
        with within("database read"):
            async with _translated(), asyncio.timeout(TRANSACTION_TIMEOUT_S), self._reads.connect() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """One transaction, committed at the end of the block.

        After a `DatabaseUnavailableError` it may be committed all the same: the answer can be what got lost.
        """
        with within("database write"):
            async with (
                _translated(),
                asyncio.timeout(TRANSACTION_TIMEOUT_S),
                self._turn,
                self._writes.begin() as connection,
            ):
                yield connection


async def _migrate(url: URL) -> None:
    name = url.render_as_string()
    engine = create_engine(url, for_migrations=True)
    try:
        if url.get_backend_name() == "sqlite":
            await keep_write_ahead_log(url)
        async with _translated(), engine.execution_options(**{WRITES: True}).begin() as connection:
            await connection.run_sync(upgrade, name)
    except DatabaseUnavailableError as error:
        raise DatabaseUnavailableError(
            f"the database {name} does not answer: {error}; start it, or correct OVERLANE_DATABASE_URL"
        ) from error
    finally:
        await engine.dispose()


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        if (away := unavailable(error)) is not None:
            raise away from error
        raise
