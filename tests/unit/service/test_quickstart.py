"""What keeps `make run` from starting is said in one line."""

from pathlib import Path

import pytest
import structlog
import typer
from typer.testing import CliRunner

from service.quickstart import FAILED, INVALID, main

app = typer.Typer()
app.command()(main)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text("name: tiny\ndata: {source: synthetic}\n")
    return file


def run(home: str, job_file: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["--home", home, "--job", str(job_file), "--exit"])
    return result.exit_code, result.output


def test_a_setting_that_is_wrong(tmp_path: Path, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLANE_CLUSTER_CPUS", "0")
    before = structlog.get_config()
    status, output = run(str(tmp_path / "home"), job_file)
    assert structlog.get_config() == before, "nothing may go on writing to the log file when it is closed"
    assert status == INVALID
    assert "cluster_cpus: Input should be greater than or equal to 1" in output


def test_a_home_that_cannot_be_made(job_file: Path) -> None:
    status, output = run("/proc/nowhere", job_file)
    assert status == FAILED
    assert "/proc/nowhere" in output


def test_a_job_file_that_is_wrong(tmp_path: Path, job_file: Path) -> None:
    job_file.write_text("name: tiny\ntrainin: {}\n")
    status, output = run(str(tmp_path / "home"), job_file)
    assert status == INVALID
    assert "did you mean 'training'?" in output
    assert not (tmp_path / "home").exists()
