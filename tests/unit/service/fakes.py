"""A Ray cluster without Ray, and reports without training."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from service.cluster.gateway import (
    RayJob,
    RayNode,
    RayRefusedError,
    RayResources,
    RayRun,
    RayStatus,
    RaySubmission,
    RayUnavailableError,
)
from workers.run import REPORT_TOKEN_METADATA

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class FakeRay:
    """A `RayGateway` whose answers a test sets. `calls` lists what the service asked for that changes something."""

    cpus: float = 2
    used: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, RayJob] = field(default_factory=dict)
    submissions: dict[str, RaySubmission] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    others: list[RayRun] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    refusal: str | None = None
    away: bool = False
    loses_answers: bool = False
    arrives_late: bool = False
    address: str = "http://ray.test:8265"

    async def submit(self, submission: RaySubmission) -> None:
        self._reach()
        self.calls.append(f"submit {submission.id}")
        if self.refusal is not None:
            raise RayRefusedError(self.refusal)
        if self.arrives_late and submission.id not in self.submissions:
            self.submissions[submission.id] = submission
            raise RayUnavailableError("the connection broke")
        if self.arrives_late:
            self.jobs[submission.id] = RayJob(status=RayStatus.PENDING)
        if submission.id in self.jobs:
            raise RayRefusedError(f"{submission.id} already exists")
        self.submissions[submission.id] = submission
        self.jobs[submission.id] = RayJob(status=RayStatus.PENDING)
        if self.loses_answers:
            raise RayUnavailableError("the connection broke")

    async def job(self, job_id: str) -> RayJob | None:
        self._reach()
        return self.jobs.get(job_id)

    async def runs(self) -> list[RayRun]:
        self._reach()
        own = [
            RayRun(submission_id=job_id, entrypoint="train", **seen.model_dump()) for job_id, seen in self.jobs.items()
        ]
        return [*own, *self.others]

    async def stop(self, job_id: str) -> None:
        self._reach()
        self.calls.append(f"stop {job_id}")

    async def forget(self, job_id: str) -> None:
        self._reach()
        self.calls.append(f"forget {job_id}")
        self.jobs.pop(job_id, None)

    async def logs(self, job_id: str) -> str | None:
        self._reach()
        return self.texts.get(job_id)

    async def resources(self) -> RayResources:
        self._reach()
        return RayResources((RayNode("n1", "10.0.0.1", True, {"CPU": self.cpus}),), self.used)

    async def close(self) -> None:
        self.away = True

    def says(self, job_id: str, status: RayStatus, message: str | None = None) -> None:
        """From now on Ray reports this about the job."""
        self.jobs[job_id] = RayJob(status=status, message=message)

    def token(self, job_id: str) -> str:
        """The report token that the job's process was given."""
        return self.submissions[job_id].metadata[REPORT_TOKEN_METADATA]

    def _reach(self) -> None:
        if self.away:
            raise RayUnavailableError("ray.test does not answer")


@dataclass
class FakeClock:
    """The time that is written down; it moves only when a test says so."""

    time: datetime = START

    def __call__(self) -> datetime:
        return self.time

    def forward(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def collective(name: str, partition: str | None, ms: float, exposed_ms: float, size: int = 100) -> dict[str, Any]:
    return {
        "name": name,
        "partition": partition,
        "bytes_sent": size,
        "bytes_received": 2 * size,
        "ms": ms,
        "exposed_ms": exposed_ms,
    }


def sample(step: int, rank: int, **changes: Any) -> dict[str, Any]:
    """A step sample as JSON: 8 ms of communication, 2 ms of it exposed, in a step of 20 ms."""
    return {
        "step": step,
        "rank": rank,
        "samples": 512,
        "step_ms": 20.0,
        "compute_ms": 15.0,
        "comm_ms": 8.0,
        "exposed_ms": 2.0,
        "hidden_ms": 6.0,
        "comm_overlap": 0.75,
        "ids": 1000,
        "overlapped_ids": 250,
        "id_overlap": 0.25,
        "collectives": [collective("embedding", "ol", 2.0, 2.0), collective("embedding", "nol", 6.0, 0.0)],
        "time": "2026-01-02T03:04:05Z",
        "loss": 0.5,
        "data_wait_ms": 0.0,
        "attempt": 0,
    } | changes
