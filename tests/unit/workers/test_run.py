"""What a run takes from its arguments and from the environment."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workers.job import InvalidJob
from workers.run import ExitStatus, read_run
from workers.train import main

JOB = json.dumps({"name": "tiny", "data": {"source": "synthetic"}})


def test_the_control_plane_speaks_through_the_environment() -> None:
    run = read_run(
        "env:OVERLANE_JOB",
        {
            "OVERLANE_JOB": JOB,
            "OVERLANE_JOB_ID": "job-1",
            "OVERLANE_STORAGE": "s3://bucket/runs",
            "OVERLANE_REPORT_URL": "http://127.0.0.1:1",
            "OVERLANE_REPORT_TOKEN": "secret",
        },
    )
    assert run.job.name == "tiny"
    assert (run.job_id, run.storage) == ("job-1", "s3://bucket/runs")
    assert (run.report_url, run.report_token) == ("http://127.0.0.1:1", "secret")


def test_the_control_plane_hands_the_token_over_through_ray() -> None:
    config = {"runtime_env": {}, "metadata": {"job_name": "job-1", "overlane_report_token": "secret"}}
    environment = {"JOB": JOB, "OVERLANE_REPORT_URL": "http://127.0.0.1:1"}
    run = read_run("env:JOB", environment | {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config)})
    assert run.report_token == "secret"
    person = read_run("env:JOB", {"JOB": JOB, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"metadata": {}})})
    assert person.report_token is None


def test_a_person_needs_no_environment(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    run = read_run(str(tmp_path / "job.yaml"), {})
    assert run.job_id.startswith("tiny-2")
    assert Path(run.storage).is_absolute()
    assert run.report_url is None


def test_a_relative_data_path_is_fixed_before_it_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inter.tsv").write_text("")
    run = read_run("env:JOB", {"JOB": json.dumps({"name": "a", "data": {"path": "inter.tsv"}})})
    assert run.job.data.path == str(tmp_path / "inter.tsv")


def test_a_path_in_an_object_store_stays_as_it_is() -> None:
    data = {"source": "parquet", "path": "s3://bucket/clicks", "columns": {"label": "clicked", "ids": ["user"]}}
    run = read_run("env:JOB", {"JOB": json.dumps({"name": "a", "data": data})})
    assert run.job.data.path == "s3://bucket/clicks"


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({}, "job file: the environment variable JOB is not set"),
        ({"JOB": JOB, "OVERLANE_REPORT_URL": "http://127.0.0.1:1"}, "give both of them or none"),
        ({"JOB": json.dumps({"name": "a", "data": {"source": "parquet"}})}, "data.path: 'parquet' reads files; name"),
    ],
)
def test_what_is_wrong_is_said(environment: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem):
        read_run("env:JOB", environment)


def test_a_job_file_that_is_not_valid_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text("name: a\ntraning: {}\nepochs: 1\n")
    assert main(["--job", str(tmp_path / "job.yaml")]) is ExitStatus.INVALID_JOB
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "traning: unknown field; did you mean 'training'?",
        "epochs: unknown field; known fields: "
        "name, model, data, training, workers, evaluation, checkpoint, retries, queue",
    ]
    assert told.out == ""


def test_a_missing_argument_ends_with_status_2() -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


def test_the_control_plane_can_check_a_job_without_torch_and_ray() -> None:
    code = (
        "import sys, workers.job, workers.reports, workers.capacity, workers.sources, workers.sources.synthetic\n"
        "import workers.sources.movielens\n"
        "sys.exit(bool({'torch', 'ray', 'torchrec'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
