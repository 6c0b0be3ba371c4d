"""Requests that schemathesis makes up out of the OpenAPI document, with all of its checks.

They go to the whole application; only Ray is a fake, in which jobs run until they are stopped. The same for longer:
`python -m tests.unit.service.fuzzing --minutes 20`.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemathesis
import structlog
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import FatalError, NonFatalError, ScenarioFinished

from service.app import create_app
from service.cluster.gateway import RayStatus, RaySubmission
from service.plans import DRY_RUN_PREFIX
from service.settings import Settings
from tests.unit.service.callers import Callers
from tests.unit.service.fakes import FakeRay
from workers.plans import Check, CheckName, Finding, Outcome

# What the schema of a job file cannot say: sources, files and room that there are.
_REFUSED_JOB = [413, 415, 422]


class BusyRay(FakeRay):
    """A Ray in which everything starts at once, dry runs find nothing wrong, and jobs run until they are stopped."""

    async def submit(self, submission: RaySubmission) -> None:
        await super().submit(submission)
        if submission.id.startswith(DRY_RUN_PREFIX):
            names = (CheckName.DATA, CheckName.MODEL, CheckName.TABLES)
            findings = (Finding(check=Check(name=name, outcome=Outcome.OK, detail="good")) for name in names)
            self.texts[submission.id] = "".join(finding.line() for finding in findings)
            self.says(submission.id, RayStatus.SUCCEEDED)
        else:
            self.texts[submission.id] = "attempt 0\n"
            self.says(submission.id, RayStatus.RUNNING)

    async def stop(self, job_id: str) -> None:
        await super().stop(job_id)
        self.says(job_id, RayStatus.STOPPED)


@dataclass
class Found:
    """What a run found: failures in words, each once, and how many requests and checks it made."""

    requests: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)


def fuzz(home: Path, seed: int, max_examples: int, max_time_s: int | None = None, *, coverage: bool = True) -> Found:
    """One run over all operations with the token of an admin.

    `coverage` is the phase that goes through every way in which a schema can be met and missed: some 1500 requests.
    """
    callers = Callers(home / "tokens")
    settings = Settings(
        home=home, tokens_file=callers.file, allowed_hosts=("testserver",), rate_limit=0, dashboard=home / "no-page"
    )
    app = create_app(settings, BusyRay(cpus=64))
    token = callers.headers("root")
    config = SchemathesisConfig.from_dict(_config(seed, max_examples, max_time_s, coverage) | {"headers": token})
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=config, headers=token)
    found = Found()
    for event in from_schema(schema).execute():
        if isinstance(event, ScenarioFinished):
            _take(event, found)
        elif isinstance(event, NonFatalError):
            found.failures[f"{event.label}: {event.info.title}"] = f"{event.value}"
        elif isinstance(event, FatalError):
            raise event.exception
    return found


def _config(seed: int, max_examples: int, max_time_s: int | None, coverage: bool) -> dict[str, Any]:
    limits = {} if max_time_s is None else {"max-time": max_time_s}
    job_files = [_also_refused(f"POST {path}", 429, *_REFUSED_JOB) for path in ("/v1/jobs", "/v1/plans")]
    return {
        "seed": seed,
        "continue-on-failure": True,
        "request-timeout": 20,
        "max-stream-events": 5,
        "generation": {"database": "none", "max-examples": max_examples},
        "phases": {"coverage": {"enabled": coverage}},
        # The schema cannot say that a range ends after it begins.
        "operations": [*job_files, _also_refused("GET /v1/jobs/{job_id}/trace", 404, 422)],
        **limits,
    }


def _also_refused(operation: str, *statuses: int) -> dict[str, Any]:
    accepted = {"expected-statuses": ["2xx", 304, *statuses]}
    return {"include-name": operation, "checks": {"positive_data_acceptance": accepted}}


def _take(event: ScenarioFinished, found: Found) -> None:
    recorder = event.recorder
    found.requests += len(recorder.interactions)
    for case_id, checks in recorder.checks.items():
        for check in checks:
            found.checks[check.name] += 1
            if check.failure_info is not None:
                failure = check.failure_info.failure
                sent = recorder.cases[case_id].value.as_curl_command()
                response = recorder.interactions[case_id].response
                answer = "" if response is None else f"{response.status_code} {response.content[:300]!r}"
                key = f"{recorder.label}: {check.name}: {failure.title}"
                found.failures.setdefault(key, f"{failure.message}\n  {sent}\n  {answer}")


@contextmanager
def silent_log() -> Iterator[None]:
    """The service logs each job and each refusal, of which there are thousands."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[lambda *_: ""])
    try:
        yield
    finally:
        structlog.configure(**before)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.unit.service.fuzzing", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, silent_log():
        found = fuzz(Path(home), given.seed, max_examples=1_000_000, max_time_s=round(60 * given.minutes))
    sys.stdout.write(f"{found.requests} requests, seed {given.seed}; {sum(found.checks.values())} checks:\n")
    sys.stdout.writelines(f"  {name}: {count}\n" for name, count in sorted(found.checks.items()))
    sys.stdout.writelines(f"FAILED {key}\n  {failure}\n" for key, failure in found.failures.items())
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
