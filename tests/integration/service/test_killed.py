"""The service is killed again and again while jobs are submitted: each is recorded once, and each runs once."""

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

JOBS = 100
KILLS = 20
CPUS = 16
RUNS_FOR_S = 0.2
PATIENCE_S = 600.0
JOB = {"name": "tiny", "data": {"source": "synthetic"}, "workers": {"count": 1}}


class Ray:
    """What Ray's dashboard answers, of jobs that run for a moment and succeed."""

    def __init__(self) -> None:
        self.submitted: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self._lock = threading.Lock()

    def submit(self, body: dict[str, Any]) -> tuple[int, Any]:
        job_id = body["submission_id"]
        with self._lock:
            if job_id in self._since:
                return 500, f"ValueError: Job with submission_id {job_id} already exists"
            self.submitted[job_id] += 1
            self._since[job_id] = time.monotonic()
        return 200, {"job_id": job_id, "submission_id": job_id}

    def job(self, job_id: str) -> tuple[int, Any]:
        with self._lock:
            since = self._since.get(job_id)
        if since is None:
            return 404, f"Job {job_id} does not exist"
        status = "SUCCEEDED" if time.monotonic() - since > RUNS_FOR_S else "RUNNING"
        return 200, {"submission_id": job_id, "status": status, "message": None, "entrypoint": "train"}

    def runs(self) -> tuple[int, Any]:
        with self._lock:
            known = list(self._since)
        return 200, [self.job(job_id)[1] for job_id in known]


def answer(ray: Ray, method: str, path: str, body: bytes) -> tuple[int, Any]:
    match [method, *path.strip("/").split("/")]:
        case ["POST", "api", "jobs"]:
            return ray.submit(json.loads(body))
        case ["GET", "api", "jobs"]:
            return ray.runs()
        case ["GET", "api", "jobs", job_id]:
            return ray.job(job_id)
        case ["GET", "api", "jobs", _, "logs"]:
            return 200, {"logs": "hello\n"}
        case ["GET", "api", "v0", "nodes"]:
            node = {"node_id": "a", "node_ip": "127.0.0.1", "state": "ALIVE", "resources_total": {"CPU": CPUS}}
            return 200, {"data": {"result": {"result": [node]}}}
        case ["GET", "api", "cluster_status"]:
            return 200, {"data": {"clusterStatus": None}}
    raise AssertionError(f"{method} {path} was not expected")


@pytest.fixture
def ray() -> Iterator[tuple[Ray, str]]:
    """Ray, and its address."""
    ray = Ray()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            status, content = answer(ray, self.command, self.path, body)
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing."""

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                # The service was killed before it had its answer.
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield ray, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class Service:
    """`overlane serve` on one home and one port, life after life."""

    def __init__(self, home: Path, ray_address: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-c", "from service.cli import main; main()", "serve"]
        self._command += ["--port", str(self.port), "--home", str(home), "--ray-address", ray_address]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        assert "Overlane is up" in self._process.stdout.readline()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None


@pytest.fixture
def service(tmp_path: Path, ray: tuple[Ray, str]) -> Iterator[Service]:
    service = Service(tmp_path / "home", ray[1])
    yield service
    service.kill()


def submit(url: str, number: int, deadline: float) -> str:
    """Submit a job as a careful client does: with a key, and again until there is an answer. Its id."""
    while True:
        assert time.monotonic() < deadline
        try:
            answered = httpx.post(f"{url}/v1/jobs", json=JOB, headers={"Idempotency-Key": f"key-{number}"}, timeout=10)
        except httpx.TransportError:
            time.sleep(0.1)
            continue
        if answered.status_code == 503:
            continue
        assert answered.status_code == 202, answered.text
        job_id = answered.json()["id"]
        assert isinstance(job_id, str)
        return job_id


def test_a_service_that_is_killed_forgets_nothing_and_starts_nothing_twice(
    service: Service, ray: tuple[Ray, str]
) -> None:
    chance, deadline = random.Random(5), time.monotonic() + PATIENCE_S
    with ThreadPoolExecutor(4) as clients:
        # They come over the whole time in which the service is killed.
        due = threading.Semaphore(0)

        def client(number: int) -> str:
            due.acquire()
            return submit(service.url, number, deadline)

        submitted = [clients.submit(client, number) for number in range(JOBS)]
        for _ in range(KILLS):
            service.start()
            due.release(JOBS // KILLS)
            time.sleep(chance.uniform(0.0, 0.8))
            service.kill()
        service.start()
        ids = [each.result() for each in submitted]
    assert len(set(ids)) == JOBS
    shown = _all_ended(service.url, deadline)
    assert sorted(job["id"] for job in shown) == sorted(ids), "each is recorded, once"
    assert {job["state"] for job in shown} == {"succeeded"}
    assert ray[0].submitted == Counter(ids), "each runs, once"


def _all_ended(url: str, deadline: float) -> list[dict[str, Any]]:
    while True:
        assert time.monotonic() < deadline
        jobs: list[dict[str, Any]] = httpx.get(f"{url}/v1/jobs", params={"limit": 200}, timeout=10).json()["items"]
        if all(job["ended_at"] is not None for job in jobs):
            return jobs
        time.sleep(0.2)
