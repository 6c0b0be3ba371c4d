"""One run of a job: the job file, and what the control plane says about it in the environment."""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path

from workers.job import InvalidJob, JobSpec, load_job, read_job
from workers.sources import check

REPORT_TOKEN_METADATA = "overlane_report_token"
"""Under this name the control plane hands Ray the token with which the job reports."""

# Ray's own: what a job was submitted with, for the process of its driver.
_RAY_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


class ExitStatus(IntEnum):
    """How `python -m workers.train` ends. STOPPED is what a shell shows for a process that Ctrl-C ended."""

    SUCCEEDED = 0
    FAILED = 1
    INVALID_JOB = 2
    STOPPED = 130


@dataclass(frozen=True)
class Run:
    """A job together with its id, where its checkpoints go, and whom to report to (None: nobody)."""

    job: JobSpec
    job_id: str
    storage: str
    report_url: str | None = None
    report_token: str | None = None


def read_run(job: str, environment: dict[str, str]) -> Run:
    """Read the job file and what the control plane says in the environment, by itself or through Ray.

    Raises `InvalidJob`.
    """
    spec = read_spec(job, environment)
    if spec.data.path is not None and "://" not in spec.data.path:
        # Ray's workers have working directories of their own.
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"path": os.path.abspath(spec.data.path)})})
    check(spec.data)
    url, token = environment.get("OVERLANE_REPORT_URL"), _report_token(environment)
    if (url is None) != (token is None):
        raise InvalidJob(["OVERLANE_REPORT_URL and OVERLANE_REPORT_TOKEN: give both of them or none"])
    storage = environment.get("OVERLANE_STORAGE", ".overlane/storage")
    return Run(
        job=spec,
        job_id=environment.get("OVERLANE_JOB_ID") or f"{spec.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        storage=storage if "://" in storage else os.path.abspath(storage),
        report_url=url,
        report_token=token,
    )


def _report_token(environment: dict[str, str]) -> str | None:
    """From a variable of its own, or from Ray, which shows variables in the arguments of processes."""
    config = json.loads(environment.get(_RAY_JOB_CONFIG, "{}"))
    through_ray: str | None = config.get("metadata", {}).get(REPORT_TOKEN_METADATA)
    return environment.get("OVERLANE_REPORT_TOKEN", through_ray)


def read_spec(job: str, environment: dict[str, str]) -> JobSpec:
    """The job file at the path `job`, or in the variable NAME if it is `env:NAME`. Raises `InvalidJob`."""
    place, _, name = job.partition(":")
    if place != "env" or not name:
        return load_job(Path(job))
    if name not in environment:
        raise InvalidJob([f"job file: the environment variable {name} is not set"])
    return read_job(environment[name])
