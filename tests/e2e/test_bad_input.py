"""Bad input gets an answer that says what to do, and changes nothing."""

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Trained
from tests.e2e.running import OVERLANE, Json, environment, processes_of


def _unknown_field(spec: Json) -> None:
    spec["training"]["bath_size"] = 256


def _missing_file(spec: Json) -> None:
    spec["data"]["path"] = "/nowhere/ml-100k.inter"


def _too_many_workers(spec: Json) -> None:
    spec["workers"]["count"] = 64


CASES = [
    pytest.param(_unknown_field, "invalid-job", ["training.bath_size", "batch_size"], 2, id="unknown field"),
    pytest.param(_missing_file, "invalid-job", ["data.path", "/nowhere/ml-100k.inter"], 2, id="missing data file"),
    pytest.param(_too_many_workers, "infeasible", ["64", "2"], 1, id="too many workers"),
]


@pytest.mark.parametrize(("damage", "slug", "words", "exit_status"), CASES)
def test_refused_and_not_recorded(
    trained: Trained, tmp_path: Path, damage: Callable[[Json], None], slug: str, words: list[str], exit_status: int
) -> None:
    spec = copy.deepcopy(trained.spec)
    damage(spec)
    before = trained.rest.job_ids()

    answer = trained.rest.submit(spec)
    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == f"urn:overlane:problem:{slug}"
    said = problem["detail"] + str(problem.get("errors"))
    assert all(word in said for word in words), problem

    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    done = subprocess.run(
        [OVERLANE, "submit", file],
        env=environment(OVERLANE_URL=trained.rest.url, COLUMNS="200"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == exit_status, done.stdout + done.stderr
    assert all(word in done.stdout + done.stderr for word in words)
    assert trained.rest.job_ids() == before


def test_taken_port(trained: Trained, empty_home: Path) -> None:
    port = trained.rest.url.rsplit(":", 1)[1]
    done = subprocess.run(
        [OVERLANE, "serve", "--port", port, "--home", empty_home],
        env=environment(COLUMNS="200"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert port in done.stderr
    assert "Traceback" not in done.stderr
    assert not empty_home.exists() or list(empty_home.iterdir()) == []
    assert processes_of(empty_home) == []
