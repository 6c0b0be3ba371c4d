"""How fast does the control plane answer under load, and does it grow? `make bench ARGS=load`.

A service with SQLite and many jobs of the past takes submissions and readers, and a Ray that is played runs what the
service starts. All of it shares this machine. More is submitted than the cluster can hold, so the queue grows.
"""

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from pydantic import BaseModel

from benchmarks.load.generator import READERS, SUBMISSIONS_PER_S, THINK_S
from benchmarks.load.history import fill
from benchmarks.results import Figure, Result

JOBS, SECONDS = 100_000, 300.0
CPUS, RUNS_FOR_S = 32, 10.0
LIMITS_MS = {"list": 100.0, "show": 100.0, "submit": 200.0}
# Against the second minute: by then every route and every buffer was used.
GROWTH_LIMIT = 1.1
_MINUTE_S = 60.0
_LOOK_EVERY_S = 1.0


class Heard(BaseModel):
    """What the generator prints."""

    latencies_ms: dict[str, list[float]]
    errors: list[str]
    cpu_s: float


def run(seconds: float = SECONDS) -> Result:
    """Put the load on and compare with the limits."""
    with tempfile.TemporaryDirectory(prefix="ovl-") as folder:
        home = Path(folder)
        asyncio.run(fill(home / "overlane.db", JOBS))
        with _ray() as address, _service(home, address) as (service, port):
            process = psutil.Process(service.pid)
            with _watched(process) as sizes:
                heard = _generate(port, seconds)
            cpu_s = sum(process.cpu_times()[:2])
    minutes = [sizes[round(at) : round(at + _MINUTE_S)] for at in range(0, round(seconds), round(_MINUTE_S))]
    medians = [statistics.median(minute) for minute in minutes if minute]
    growth = medians[-1] / medians[min(1, len(medians) - 1)]
    p99 = {route: _percentile(heard.latencies_ms[route], 99) for route in LIMITS_MS}
    for error in heard.errors[:5]:
        sys.stderr.write(f"{error}\n")
    return Result.now(
        "load",
        f"{JOBS:,} jobs in SQLite, {SUBMISSIONS_PER_S} submissions a second, {READERS} readers that pause "
        f"{THINK_S:g} s, for {seconds:g} s; a cluster of {CPUS} CPUs on which a job of one CPU runs {RUNS_FOR_S:g} s",
        f"no error; p99 in ms at most {LIMITS_MS}; memory in the last minute at most {GROWTH_LIMIT} of the second",
        reached=not heard.errors and growth <= GROWTH_LIMIT and all(p99[name] <= LIMITS_MS[name] for name in p99),
        figures=[
            Figure(name="errors", value=len(heard.errors)),
            *(
                Figure(name=f"{route} p{percent}, ms", value=_percentile(heard.latencies_ms[route], percent))
                for route in LIMITS_MS
                for percent in (50, 95, 99, 100)
            ),
            *(Figure(name=f"requests: {route}", value=len(heard.latencies_ms[route])) for route in LIMITS_MS),
            *(Figure(name=f"memory in minute {at}, MiB", value=size) for at, size in enumerate(medians, 1)),
            Figure(name="memory, last minute / second minute", value=growth),
            Figure(name="cores used by the service", value=cpu_s / seconds),
            Figure(name="cores used by the load generator", value=heard.cpu_s / seconds),
        ],
    )


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _generate(port: int, seconds: float) -> Heard:
    command = [sys.executable, "-m", "benchmarks.load.generator", str(port), str(JOBS), str(seconds)]
    return Heard.model_validate_json(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@contextmanager
def _ray() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.load.ray", str(CPUS), str(RUNS_FOR_S)]
    with _ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@contextmanager
def _service(home: Path, ray_address: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from service.cli import main; main()", "serve", "--port", str(port)]
    command += ["--home", str(home), "--ray-address", ray_address]
    with (
        (home / "service.log").open("w") as log,
        # All clients come from one address, which may send 200 requests a second otherwise.
        _ended(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=_environment(OVERLANE_RATE_LIMIT="0")
            )
        ) as process,
    ):
        assert process.stdout is not None
        if "Overlane is up" not in process.stdout.readline():
            raise RuntimeError(f"the service does not start:\n{(home / 'service.log').read_text()}")
        yield process, port


def _environment(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("OVERLANE_")}, **more}


@contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _watched(process: psutil.Process) -> Iterator[list[float]]:
    """The resident memory of a process in MiB, once a second."""
    sizes: list[float] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOK_EVERY_S):
            sizes.append(process.memory_info().rss / 2**20)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield sizes
    finally:
        done.set()
        thread.join()
