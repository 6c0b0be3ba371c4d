"""`python -m benchmarks.events.followers PORT COUNT`: clients that follow the job while they are told to.

A line `on` connects them and is answered once each has its first event; `off` lets them go, and is answered with how
many of them saw every event, and how many events that were.
"""

import asyncio
import re
import sys
from collections.abc import Sequence

from benchmarks.events.plane import JOB_ID

_STEP = re.compile(rb'event: step\ndata: \{"step":(\d+)')


class Follower:
    """One connection; what comes is kept, and looked at when it is over."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._content = bytearray()
        self.begun = asyncio.Event()

    async def follow(self) -> None:
        """Read until cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(f"GET /v1/jobs/{JOB_ID}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            while piece := await reader.read(2**16):
                self._content += piece
                if b"event: " in self._content:
                    self.begun.set()
            raise ConnectionError("the service has cut a follower off")
        finally:
            writer.close()

    @property
    def steps(self) -> list[int]:
        """The steps that it was told of."""
        return [int(step) for step in _STEP.findall(self._content)]


def complete(seen: Sequence[Sequence[int]]) -> tuple[int, int]:
    """How many clients saw every event since the last of them began, and how many events that were."""
    begin = max((steps[0] for steps in seen if steps), default=0)
    since = [[step for step in steps if step > begin] for steps in seen]
    every = max(since, key=len, default=[])
    return sum(steps == every for steps in since), len(every)


async def _run(port: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    followers: list[Follower] = []
    tasks: list[asyncio.Task[None]] = []
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "on":
            followers = [Follower(port) for _ in range(count)]
            tasks = [asyncio.create_task(follower.follow()) for follower in followers]
            await asyncio.gather(*(follower.begun.wait() for follower in followers))
            answer = "on"
        else:
            broken = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            whole, events = complete([follower.steps for follower in followers])
            answer = f"{whole - len(broken)} {events}"
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]), int(sys.argv[2])))
