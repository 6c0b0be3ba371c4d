"""From the submission of a job to its first training step: `make bench ARGS=first-step`.

In turns a job goes to `POST /v1/jobs`, and the same job straight to Ray: the request that `ray job submit` sends, with
the command and the environment that the control plane would give it, timed without the start of that program. Both run
on the same Ray, which is up and has run such jobs before.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.first_step.mark import job
from benchmarks.results import Ratio, Result
from service.server import control_plane
from service.settings import Settings
from workers.job import parse_job

TURNS, WARM_UP = 10, 1
TARGET = 1.1
_WITHIN_S = 180.0
_LOOK_EVERY_S = 0.2
_REPO = Path(__file__).resolve().parents[2]


def run() -> Result:
    """Take turns and compare; who begins changes from turn to turn."""
    # For the workers, which import the model from this checkout.
    os.environ["PYTHONPATH"] = str(_REPO)
    with tempfile.TemporaryDirectory(prefix="ovl-") as name:
        settings = Settings(home=Path(name) / "home", port=0, cluster_cpus=2)
        with control_plane(settings) as plane:
            sides = Sides(Path(name), plane.url, settings)
            turns = [sides.turn(number) for number in range(WARM_UP + TURNS)][WARM_UP:]
    ratio = Ratio.of("POST /v1/jobs", "ray job submit", turns)
    return Result.now(
        "first-step",
        "From the submission of a job with 2 workers to its first training forward, on a Ray that is warm",
        f"at most {TARGET}",
        reached=ratio.median <= TARGET,
        ratios=[ratio],
    )


class Sides:
    """The two ways to the same cluster."""

    def __init__(self, folder: Path, url: str, settings: Settings) -> None:
        self._folder = folder
        self._command = settings.job_command
        self._service = httpx.Client(base_url=url, timeout=30)
        token = (settings.home / "ray" / "token").read_text()
        address = self._service.get("/v1/cluster").json()["ray_address"]
        self._ray = httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=30)

    def turn(self, number: int) -> tuple[float, float]:
        """Milliseconds through the control plane and straight through Ray."""
        if number % 2:
            straight = self._straight(number)
            return self._through_the_service(number), straight
        return self._through_the_service(number), self._straight(number)

    def _through_the_service(self, number: int) -> float:
        mark = self._folder / f"service-{number}"
        body = dict(job(mark))
        since = time.monotonic()
        answer = self._service.post("/v1/jobs", json=body)
        answer.raise_for_status()
        path = f"/v1/jobs/{answer.json()['id']}"
        state = _ended(lambda: str(self._service.get(path).json()["state"]))
        assert state == "succeeded", self._service.get(f"{path}/logs").text
        return _milliseconds(since, mark)

    def _straight(self, number: int) -> float:
        mark = self._folder / f"ray-{number}"
        environment = {
            "OVERLANE_JOB": parse_job(dict(job(mark))).model_dump_json(),
            "OVERLANE_JOB_ID": mark.name,
            "OVERLANE_STORAGE": str(self._folder / "storage"),
        }
        submission = {"submission_id": mark.name, "entrypoint": self._command}
        body: dict[str, Any] = {**submission, "runtime_env": {"env_vars": environment}}
        since = time.monotonic()
        self._ray.post("/api/jobs/", json=body).raise_for_status()
        path = f"/api/jobs/{mark.name}"
        state = _ended(lambda: str(self._ray.get(path).json()["status"]).lower())
        assert state == "succeeded", self._ray.get(f"{path}/logs").text
        return _milliseconds(since, mark)


def _ended(state: Callable[[], str]) -> str:
    """The state of a job that has ended."""
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline:
        if (seen := state()) in ("succeeded", "failed", "stopped", "lost"):
            return seen
        time.sleep(_LOOK_EVERY_S)
    raise TimeoutError(f"a job of this benchmark has not ended within {_WITHIN_S:g} s")


def _milliseconds(since: float, mark: Path) -> float:
    return 1000 * (float(mark.read_text()) - since)
