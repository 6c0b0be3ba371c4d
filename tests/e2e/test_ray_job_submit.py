"""Without the control plane: `ray job submit` takes a user's package along, down to the workers."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from tests.e2e.browser import Page
from tests.e2e.conftest import Trained
from tests.e2e.running import JOB_S, Json, environment

MODEL = """
from workers.models import sequence_ranker


def narrow(schema, width):
    print(f"a model of width {width}")
    return sequence_ranker(schema, embedding_dim=width, hidden=[4])
"""
JOB = {
    "name": "own-model",
    "model": {"factory": "clicks.models:narrow", "params": {"width": 8}},
    "training": {"batch_size": 256, "max_steps": 6},
    "workers": {"count": 2},
}


def ray_job_submit(trained: Trained, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `ray job submit` against the cluster of the service under test."""
    address = trained.rest.get("/v1/cluster")["ray_address"]
    return subprocess.run(
        [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", address, *arguments],
        env=environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(trained.home / "ray" / "token")),
        cwd=trained.home,
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )


def test_a_package_of_the_user_travels_to_the_workers(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "code" / "clicks").mkdir(parents=True)
    (tmp_path / "code" / "clicks" / "__init__.py").touch()
    (tmp_path / "code" / "clicks" / "models.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "code" / "job.yaml").write_text(yaml.safe_dump(JOB), encoding="utf-8")
    runtime: Json = {"env_vars": {"OVERLANE_STORAGE": str(tmp_path / "storage"), "OVERLANE_JOB_ID": "own-model-1"}}
    own = ["--working-dir", str(tmp_path / "code"), "--runtime-env-json", json.dumps(runtime)]
    done = ray_job_submit(trained, *own, "--", sys.executable, "-m", "workers.train", "--job", "job.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a model of width 8" in done.stdout
    assert "6 steps, 3,072 samples in " in done.stdout
    steps = pq.read_table(tmp_path / "storage" / "own-model-1" / "telemetry", columns=["rank", "step"]).to_pylist()
    assert sorted((row["rank"], row["step"]) for row in steps) == [(rank, step) for rank in (0, 1) for step in range(6)]


def test_the_page_shows_what_was_submitted_without_the_service(page: Page, trained: Trained) -> None:
    done = ray_job_submit(trained, "--submission-id", "a-run-of-others", "--", "echo", "hello")
    assert done.returncode == 0, done.stdout + done.stderr
    page.open("#/")
    row = 'tr[data-run="a-run-of-others"]'
    page.wait_for(row)
    assert page.figures(row)["state"] == "succeeded"
    assert "echo hello" in page.text(row)
    assert "a-run-of-others" not in page.text("table.jobs")
