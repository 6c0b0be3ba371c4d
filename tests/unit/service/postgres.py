"""A PostgreSQL server for the tests: Debian's, in a folder and on a port of its own, not forced onto the disk."""

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import URL

from service.store.database import Database
from service.store.engine import parse_url
from service.store.tables import metadata

_DATABASE = "overlane"
_OPTIONS = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c shared_buffers=16MB -c max_connections=60"


def installed() -> Path | None:
    """The folder of the newest PostgreSQL's programs. Debian has them outside of the search path."""
    found = [initdb.parent for initdb in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda folder: int(folder.parent.name))
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


class PostgresServer:
    """A server that `start` and `stop` may start and stop again and again; what is stored stays until `remove`.

    PostgreSQL refuses to run as root, who runs it as the user that Debian's package brings.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = "postgres" if os.getuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="overlane-pg-"))
        if self._user is not None:
            os.chown(self._folder, pwd.getpwnam(self._user).pw_uid, -1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._databases = 0

    def create(self) -> None:
        """Make the files of the server, start it, and make the tables."""
        self._call("initdb", "--no-sync", "--auth=trust", "--username=overlane", "--encoding=UTF8", "--locale=C")
        self.start()
        self._execute(f"CREATE DATABASE {_DATABASE}")
        self._run(self._migrate())

    def start(self) -> None:
        options = f"{_OPTIONS} -c listen_addresses=127.0.0.1 -c port={self._port} -c unix_socket_directories=''"
        self._call("pg_ctl", "start", "--wait", f"--options={options}", f"--log={self._folder / 'log'}")

    @property
    def running(self) -> bool:
        return (self._folder / "data" / "postmaster.pid").exists()

    def stop(self) -> None:
        """End the server, and every connection to it, at once."""
        self._call("pg_ctl", "stop", "--wait", "--mode=fast")

    def remove(self) -> None:
        self._call("pg_ctl", "stop", "--wait", "--mode=immediate")
        shutil.rmtree(self._folder)
        self._loop.close()

    def clean(self) -> URL:
        """The database of one test after the other: with all tables and no rows."""
        names = ", ".join(table.name for table in metadata.sorted_tables)
        self._execute(f"TRUNCATE {names} RESTART IDENTITY CASCADE", _DATABASE)
        return self.url(_DATABASE)

    def empty(self) -> URL:
        """A new database without tables."""
        self._databases += 1
        name = f"empty_{self._databases}"
        self._execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str) -> URL:
        return parse_url(f"postgresql://overlane@127.0.0.1:{self._port}/{database}")

    async def _migrate(self) -> None:
        await (await Database.open(self.url(_DATABASE))).close()

    def _execute(self, statement: str, database: str = "postgres") -> None:
        async def execute() -> None:
            connection = await asyncpg.connect(
                host="127.0.0.1", port=self._port, user="overlane", database=database, command_timeout=10
            )
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        self._run(execute())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        # Not asyncio.run, which would take the event loop away that the test's own fixtures use.
        self._loop.run_until_complete(work)

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), f"--pgdata={self._folder / 'data'}", *arguments]
        # Not a pipe: the server would keep it open.
        with (self._folder / "calls.log").open("a+b") as output:
            done = subprocess.run(
                command, user=self._user, group=self._user, extra_groups=[] if self._user else None,
                cwd=self._folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False,
            )  # fmt: skip
            output.seek(0)
            assert done.returncode == 0, output.read().decode(errors="replace")[-2000:]
