"""Without the control plane: `ray job submit` takes a user's package along, down to the workers."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from tests.e2e.conftest import Trained
from tests.e2e.running import JOB_S, environment

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


def test_a_package_of_the_user_travels_to_the_workers(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "code" / "clicks").mkdir(parents=True)
    (tmp_path / "code" / "clicks" / "__init__.py").touch()
    (tmp_path / "code" / "clicks" / "models.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "code" / "job.yaml").write_text(yaml.safe_dump(JOB), encoding="utf-8")
    runtime = {"env_vars": {"OVERLANE_STORAGE": str(tmp_path / "storage"), "OVERLANE_JOB_ID": "own-model-1"}}
    address = trained.rest.get("/v1/cluster")["ray_address"]
    submit = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", address]
    own = ["--working-dir", str(tmp_path / "code"), "--runtime-env-json", json.dumps(runtime)]
    done = subprocess.run(
        [*submit, *own, "--", sys.executable, "-m", "workers.train", "--job", "job.yaml"],
        env=environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(trained.home / "ray" / "token")),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a model of width 8" in done.stdout
    assert "6 steps, 3,072 samples in " in done.stdout
    steps = pq.read_table(tmp_path / "storage" / "own-model-1" / "telemetry", columns=["rank", "step"]).to_pylist()
    assert sorted((row["rank"], row["step"]) for row in steps) == [(rank, step) for rank in (0, 1) for step in range(6)]
