"""A service under test, started as `make run` starts it, and what is read from its output and its REST API."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

REPO = Path(__file__).resolve().parents[2]
OVERLANE = Path(sys.executable).parent / "overlane"
START_S = 120
JOB_S = 180
STOP_S = 60
_POLL_S = 0.2

Json = dict[str, Any]


def environment(**more: str) -> dict[str, str]:
    """The environment without its owner's settings, and a cluster of two CPUs whatever the machine has."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OVERLANE_", "RAY_"))}
    return {**own, "PYTHONUNBUFFERED": "1", "OVERLANE_CLUSTER_CPUS": "2", **more}


def until(happened: Callable[[], Any], within_s: float, what: str) -> Any:
    """The first true answer of `happened`; an AssertionError that names `what` after `within_s` seconds."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if answer := happened():
            return answer
        time.sleep(_POLL_S)
    raise AssertionError(f"{what}: not within {within_s} s")


class Quickstart:
    """`python -m service.quickstart` as a child; its output is kept for the message of a failing test."""

    def __init__(self, home: Path, job: Path) -> None:
        self.home = home
        self.output: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "service.quickstart", "--home", home, "--job", job],
            cwd=REPO,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        threading.Thread(target=self._read, daemon=True).start()

    def line(self, pattern: str, within_s: float) -> re.Match[str]:
        """The next line of output that `pattern` is found in."""
        end = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {pattern!r} within {within_s} s in\n{self.text}") from None
            if line is None:
                raise AssertionError(f"ended without a line with {pattern!r}:\n{self.text}")
            if found := re.search(pattern, line):
                return found

    def stop(self) -> int:
        """Ctrl-C; the exit status."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(STOP_S)

    def kill(self) -> None:
        self._process.kill()

    @property
    def text(self) -> str:
        return "".join(self.output)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output.append(line)
            self._lines.put(line)
        self._lines.put(None)


class Rest:
    """The REST API of the service under test."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def get(self, path: str, **query: str | int) -> Json:
        answer = self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert isinstance(body, dict)
        return body

    def job(self, job_id: str) -> Json:
        return self.get(f"/v1/jobs/{job_id}")

    def job_ids(self) -> list[str]:
        return [job["id"] for job in self.get("/v1/jobs", limit=200)["items"]]

    def submit(self, spec: Json) -> httpx.Response:
        return self.http.post("/v1/jobs", json=spec)

    def wait(self, job_id: str, *states: str, within_s: float = JOB_S) -> Json:
        """The job once it is in one of `states`."""

        def there() -> Json | None:
            job = self.job(job_id)
            return job if job["state"] in states else None

        try:
            found = until(there, within_s, f"{job_id} {' or '.join(states)}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.job(job_id)}") from None
        assert isinstance(found, dict)
        return found


def processes_of(home: Path) -> list[str]:
    """Command lines of all processes that name `home` in their arguments or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            named = [*process.cmdline(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if process.pid != os.getpid() and any(str(home) in text for text in named):
            found.append(" ".join(process.cmdline()))
    return found
