"""`python -m benchmarks.load.generator PORT PAST_JOBS SECONDS`: submits and reads; prints latencies as JSON.

Submissions leave at their time whether or not the ones before were answered, and are timed from the moment at which
they should have left: a service that stalls cannot hide it. A reader waits for its answer and then for `THINK_S`.
"""

import asyncio
import json
import random
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field

from benchmarks.load.history import PROJECTS, job_id

SUBMISSIONS_PER_S, READERS, THINK_S = 50, 200, 1.0
_SUBMITTERS = 100


@dataclass
class Seen:
    """What came of the requests: latencies (ms) by route, and what was wrong."""

    latencies_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)


class Connection:
    """One keep-alive connection that is cheap enough to have three hundred of them beside what is measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)
        reader, writer = self._streams
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n", 1)[0])
        return int(head[9:12]), await reader.readexactly(length)


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def _post(number: int) -> bytes:
    job = {"name": f"load-{number}", "data": {"source": "synthetic"}, "workers": {"count": 1}}
    body = json.dumps({**job, "queue": {"project": PROJECTS[number % len(PROJECTS)]}})
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nIdempotency-Key: key-{number}"
    )
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


class Load:
    """All clients together; `until` is when they stop, on the clock of `time.monotonic`."""

    def __init__(self, port: int, past_jobs: int, until: float) -> None:
        self._port = port
        self._past = past_jobs
        self._until = until
        self._random = random.Random(0)
        self.seen = Seen()

    async def run(self) -> None:
        readers = [self._read(number) for number in range(READERS)]
        await asyncio.gather(self._submit(), *readers)

    async def _submit(self) -> None:
        free: asyncio.Queue[Connection] = asyncio.Queue()
        for _ in range(_SUBMITTERS):
            free.put_nowait(Connection(self._port))
        begun, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while (due := begun + number / SUBMISSIONS_PER_S) < self._until:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                group.create_task(self._submit_one(free, number, due))
                number += 1

    async def _submit_one(self, free: asyncio.Queue[Connection], number: int, due: float) -> None:
        connection = await free.get()
        body = await self._timed("submit", due, 202, connection, _post(number))
        free.put_nowait(connection)
        if body is not None:
            self.seen.started.append(json.loads(body)["id"])

    async def _read(self, number: int) -> None:
        connection = Connection(self._port)
        await asyncio.sleep(THINK_S * number / READERS)
        while time.monotonic() < self._until:
            route, path = self._next()
            await self._timed(route, time.monotonic(), 200, connection, _get(path))
            await asyncio.sleep(THINK_S)

    def _next(self) -> tuple[str, str]:
        if self._random.random() < 0.5:
            newest = self.seen.started
            new = newest and self._random.random() < 0.5
            wanted = self._random.choice(newest) if new else job_id(self._random.randrange(self._past))
            return "show", f"/v1/jobs/{wanted}"
        project = self._random.choice(PROJECTS)
        filters = (
            "",
            "?limit=50",
            f"?project={project}",
            "?state=running",
            "?state=succeeded",
            "?state=failed&limit=20",
        )
        return "list", f"/v1/jobs{self._random.choice(filters)}"

    async def _timed(
        self, route: str, since: float, expected: int, connection: Connection, request: bytes
    ) -> bytes | None:
        """Ask, and note how long it took since `since`; the body if the answer was the expected one."""
        status, body = await connection.ask(request)
        self.seen.latencies_ms[route].append(1000 * (time.monotonic() - since))
        if status != expected:
            self.seen.errors.append(f"{route}: {status} {body[:300]!r}")
            return None
        return body


async def _main(port: int, past_jobs: int, seconds: float) -> None:
    load = Load(port, past_jobs, time.monotonic() + seconds)
    await load.run()
    seen = load.seen
    sys.stdout.write(
        json.dumps({"latencies_ms": seen.latencies_ms, "errors": seen.errors, "cpu_s": time.process_time()})
    )


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
