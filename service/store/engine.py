"""Engines for the two databases: a SQLite file with a write-ahead log, and PostgreSQL."""

import asyncio
import time
from typing import Any

import aiosqlite
import asyncpg
from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, TimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

WRITES = "overlane_writes"
"""The execution option of a connection whose transaction writes."""

BUSY_TIMEOUT_MS = 10_000
"""How long a transaction waits for another process that holds a SQLite file."""

_BUSY_PAUSE_S = 0.05
_CONNECT_TIMEOUT_S = 5.0
_COMMAND_TIMEOUT_S = 30.0
_POOL_TIMEOUT_S = 10.0

# Of the names that libpq gives to parts of a URL's query, those that mean something here.
_QUERY = {"host": "host", "port": "port", "sslmode": "ssl", "ssl": "ssl"}

# SQLSTATE classes that say nothing against the statement: connection, deadlock, resources, operator.
_SQLSTATES = ("08", "40", "53", "57")
_SQLITE_ERRORS = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")


class DatabaseUnavailableError(Exception):
    """The database does not answer now or takes nothing now; the same may succeed later."""


def parse_url(text: str) -> URL:
    """The URL of a database as an operator writes it, with the driver that is used. Raises `ValueError`."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # The error of SQLAlchemy would repeat the password.
        raise ValueError("not a URL such as postgresql://user:password@host:5432/database") from None
    kind = url.drivername.partition("+")[0]
    if kind == "sqlite" and url.database and url.database != ":memory:" and not url.query:
        return URL.create("sqlite+aiosqlite", database=url.database)
    if kind not in ("postgresql", "postgres") or not url.database:
        raise ValueError("name a database as postgresql://user:password@host:5432/database or sqlite:////path/file.db")
    if unknown := sorted(set(url.query) - set(_QUERY)):
        raise ValueError(f"{', '.join(unknown)}: not known in the URL of a database; known are {', '.join(_QUERY)}")
    query = {_QUERY[name]: value for name, value in url.query.items()}
    return url.set(drivername="postgresql+asyncpg", query=query)


def create_engine(url: URL, for_migrations: bool = False) -> AsyncEngine:
    """An engine for a URL of `parse_url`; nothing is connected yet.

    One `for_migrations` gives its statements any time, and has no foreign keys on SQLite: a migration may replace a
    table by a copy, and the rows that belong to it would be deleted.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, for_migrations)
    timeouts = {"timeout": _CONNECT_TIMEOUT_S, "command_timeout": None if for_migrations else _COMMAND_TIMEOUT_S}
    options: dict[str, Any] = {"poolclass": NullPool} if for_migrations else _PG_POOL
    connect = {"async_creator_fn": _connect_postgresql, **timeouts}
    return create_async_engine(url, connect_args=connect, hide_parameters=True, **options)


_PG_POOL = {"pool_pre_ping": True, "pool_size": 10, "max_overflow": 10, "pool_timeout": _POOL_TIMEOUT_S}


async def _connect_postgresql(*args: Any, **options: Any) -> Any:
    try:
        return await asyncpg.connect(*args, **options)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise DatabaseUnavailableError(f"cannot connect: {_said(error)}") from error


def _sqlite(url: URL, for_migrations: bool) -> AsyncEngine:
    engine = create_async_engine(url, hide_parameters=True, **({"poolclass": NullPool} if for_migrations else {}))

    def configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute(f"PRAGMA foreign_keys={'OFF' if for_migrations else 'ON'}")
        cursor.close()

    event.listen(engine.sync_engine, "connect", configure)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


async def keep_write_ahead_log(url: URL) -> None:
    """Give a SQLite file its write-ahead log, which it keeps from then on.

    Raises `DatabaseUnavailableError`, also for a file that is no database.

    SQLite does not wait for another process that does the same at this moment, whatever `busy_timeout` says.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            async with aiosqlite.connect(url.database or "") as connection:
                await connection.execute("PRAGMA journal_mode=WAL")
            return
        except aiosqlite.Error as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise DatabaseUnavailableError(_said(error)) from error
        await asyncio.sleep(_BUSY_PAUSE_S)


def _begin_sqlite(connection: Connection) -> None:
    """Begin where SQLAlchemy thinks that a transaction begins: Python's module would not for changes of tables.

    One that writes waits for its turn here: one that has read cannot wait any more when it comes to write.
    """
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def unavailable(error: Exception) -> DatabaseUnavailableError | None:
    """What `error` is if it says that the database is away or busy, None if it is any other error."""
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None) or ""
        name = getattr(error.orig, "sqlite_errorname", None) or ""
        if error.connection_invalidated or state.startswith(_SQLSTATES) or name.startswith(_SQLITE_ERRORS):
            return DatabaseUnavailableError(_said(error.orig or error))
    # The first is raised when no connection of the pool becomes free; the second covers time-outs of statements.
    elif isinstance(error, TimeoutError | OSError):
        return DatabaseUnavailableError(_said(error))
    return None


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
