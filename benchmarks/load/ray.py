"""`python -m benchmarks.load.ray CPUS RUNS_FOR_S`: what Ray's dashboard answers of jobs that run for a while.

Prints the port it listens on. It forgets a job some time after its end, as a cluster does.
"""

import asyncio
import json
import socket
import sys
import time
from collections import OrderedDict
from typing import Any

import uvicorn

FORGETS_AFTER_S = 20.0


class Ray:
    """A cluster of one node."""

    def __init__(self, cpus: int, runs_for_s: float) -> None:
        self._cpus = cpus
        self._runs_for_s = runs_for_s
        self._since: OrderedDict[str, float] = OrderedDict()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, content = self._answer([scope["method"], *scope["path"].strip("/").split("/")], body)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})

    def _answer(self, asked: list[str], body: bytes) -> tuple[int, Any]:
        self._forget()
        match asked:
            case ["POST", "api", "jobs"]:
                job_id = json.loads(body)["submission_id"]
                self._since[job_id] = time.monotonic()
                return 200, {"job_id": job_id, "submission_id": job_id}
            case ["GET", "api", "jobs"]:
                return 200, [self._job(job_id) for job_id in self._since]
            case ["GET", "api", "jobs", job_id]:
                return (200, self._job(job_id)) if job_id in self._since else (404, f"Job {job_id} does not exist")
            case ["GET", "api", "jobs", _, "logs"]:
                return 200, {"logs": "hello\n"}
            case ["GET", "api", "v0", "nodes"]:
                node = {
                    "node_id": "a",
                    "node_ip": "127.0.0.1",
                    "state": "ALIVE",
                    "resources_total": {"CPU": self._cpus},
                }
                return 200, {"data": {"result": {"result": [node]}}}
            case ["GET", "api", "cluster_status"]:
                used = sum(self._alive(since) for since in self._since.values())
                return 200, {"data": {"clusterStatus": {"loadMetricsReport": {"usage": {"CPU": [used, self._cpus]}}}}}
        raise AssertionError(f"{asked} was not expected")

    def _alive(self, since: float) -> bool:
        return time.monotonic() - since < self._runs_for_s

    def _job(self, job_id: str) -> dict[str, Any]:
        status = "RUNNING" if self._alive(self._since[job_id]) else "SUCCEEDED"
        return {"submission_id": job_id, "status": status, "message": None, "entrypoint": "train"}

    def _forget(self) -> None:
        oldest = time.monotonic() - self._runs_for_s - FORGETS_AFTER_S
        while self._since and next(iter(self._since.values())) < oldest:
            self._since.popitem(last=False)


async def _serve(cpus: int, runs_for_s: float) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(Ray(cpus, runs_for_s), log_level="warning", access_log=False, lifespan="off")
    await uvicorn.Server(config).serve([listening])


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
