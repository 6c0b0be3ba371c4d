"""One Ray for all tests of the workers, a control plane that only listens, and a way to run jobs."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.faults.struck import DATA, MODEL, STEPS
from tests.integration.workers.loops import train_case
from tests.ranks import RankPool
from workers.reports import ReportBatch, StepSample
from workers.training.state import tensors_in

ROOT = Path(__file__).parents[3]
TOKEN = "a-secret-of-this-job"


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """A local Ray with three CPUs, in a folder of its own: another Ray on this machine is not touched."""
    import ray

    saved = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED", "RAY_ADDRESS")}
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    os.environ.pop("RAY_ADDRESS", None)
    # Ray puts sockets there, and the path of a socket must stay short.
    with tempfile.TemporaryDirectory(prefix="ovl-", dir="/tmp") as folder:
        context = ray.init(
            address="local",
            num_cpus=3,
            object_store_memory=200_000_000,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
        )
        try:
            yield context.address_info["gcs_address"]
        finally:
            ray.shutdown()
            for name, value in saved.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@dataclass
class Listener:
    """What a control plane would have been told. `refuse` answers that many deliveries with 503 first."""

    url: str = ""
    refuse: int = 0
    batches: list[ReportBatch] = field(default_factory=list)
    paths: set[tuple[str, str]] = field(default_factory=set)
    stepped: threading.Event = field(default_factory=threading.Event)

    @property
    def samples(self) -> list[StepSample]:
        """All samples, in the order of arrival."""
        return [sample for batch in self.batches for sample in batch.samples]

    def only(self, kind: str) -> Any:
        """The one plan, result or failure that arrived."""
        (found,) = [getattr(batch, kind) for batch in self.batches if getattr(batch, kind) is not None]
        return found


@pytest.fixture
def listener() -> Iterator[Listener]:
    told = Listener()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.paths.add((self.path, self.headers["Authorization"]))
            if told.refuse:
                told.refuse -= 1
                self.send_response(503)
            else:
                told.batches.append(ReportBatch.model_validate_json(body))
                self.send_response(204)
                if told.samples:
                    told.stepped.set()
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep the output of the tests clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    told.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield told
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass(frozen=True)
class Jobs:
    """Starts jobs as the control plane does, with everything in the environment."""

    ray_address: str
    storage: Path | str

    def start(self, job: dict[str, Any], job_id: str, report_url: str | None = None) -> "subprocess.Popen[str]":
        """Start `python -m workers.train`; its output comes through a pipe.

        It inherits an ignored SIGINT, as everything does that a script starts in the background, and a blocked one, as
        everything does that Ray starts.
        """
        environment = {
            **os.environ,
            "RAY_ADDRESS": self.ray_address,
            "RAY_AUTH_MODE": "disabled",
            "OVERLANE_JOB": json.dumps(job),
            "OVERLANE_JOB_ID": job_id,
            "OVERLANE_STORAGE": str(self.storage),
        }
        if report_url is not None:
            environment.update(OVERLANE_REPORT_URL=report_url, OVERLANE_REPORT_TOKEN=TOKEN)
        train = [sys.executable, "-m", "workers.train", "--job", "env:OVERLANE_JOB"]
        command = ["env", "--ignore-signal=INT", "--block-signal=INT", *train]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, job: dict[str, Any], job_id: str, report_url: str | None = None) -> tuple[int, str]:
        """Run a job to its end; returns exit status and output."""
        process = self.start(job, job_id, report_url)
        try:
            output, _ = process.communicate(timeout=180)
        finally:
            process.kill()
        return process.returncode, output


@pytest.fixture
def jobs(ray_address: str, tmp_path: Path) -> Jobs:
    return Jobs(ray_address, tmp_path / "storage")


@pytest.fixture(scope="session")
def unstruck(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The state at the end of the small job that faults strike, trained without any, and without Ray."""
    folder = tmp_path_factory.mktemp("unstruck")
    data = {"source": "synthetic", "params": DATA}
    training = {"batch_size": 32, "epochs": 1}
    ranks.run(2, train_case, folder=folder, training=training, model={"params": MODEL}, data=data)
    return tensors_in(folder / f"step-{STEPS}")
