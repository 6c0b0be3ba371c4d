"""`python -m benchmarks.events.plane HOME`: a control plane with one job that runs; its port is printed. No Ray."""

import asyncio
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import uvicorn

from service import log
from service.app import create_app
from service.cluster.gateway import RayJob, RayResources, RayRun, RayStatus, RaySubmission, RayUnavailableError
from service.jobs.tokens import hash_token
from service.models import JobState
from service.security.audit import AuditAction, Deed
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import JobStore
from workers.job import load_job

JOB_FILE = Path(__file__).parents[2] / "examples" / "movielens.yaml"
JOB_ID = "benchmark"
REPORT_TOKEN = "of the benchmark"


class RunningJob:
    """A `RayGateway` on which the job runs, and that can do nothing else."""

    address = "http://no-ray"

    async def submit(self, submission: RaySubmission) -> None:
        raise RayUnavailableError(f"{submission.id}: there is no Ray")

    async def job(self, job_id: str) -> RayJob | None:
        return RayJob(status=RayStatus.RUNNING)

    async def runs(self) -> list[RayRun]:
        return []

    async def stop(self, job_id: str) -> None:
        raise RayUnavailableError(f"{job_id}: there is no Ray")

    async def forget(self, job_id: str) -> None:
        raise RayUnavailableError(f"{job_id}: there is no Ray")

    async def logs(self, job_id: str) -> str | None:
        return None

    async def resources(self) -> RayResources:
        raise RayUnavailableError("there is no Ray")

    async def close(self) -> None:
        pass


def main() -> None:
    """Record the job, and serve until a signal comes."""
    log.configure()
    listener = socket.create_server(("127.0.0.1", 0))
    settings = Settings(home=Path(sys.argv[1]), port=listener.getsockname()[1])
    asyncio.run(_record(settings))
    app = create_app(settings, RunningJob())
    sys.stdout.write(f"{settings.port}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)).run([listener])


async def _record(settings: Settings) -> None:
    database = await Database.open(settings.database)
    jobs, now = JobStore(database), datetime.now(UTC)
    await jobs.add(JOB_ID, load_job(JOB_FILE), now, None, Deed(None, AuditAction.SUBMIT))
    await jobs.change(
        JOB_ID, now, {JobState.QUEUED}, state=JobState.STARTING, started_at=now, on_ray=True, attempts=1,
        token_hash=hash_token(REPORT_TOKEN),
    )  # fmt: skip
    await database.close()


if __name__ == "__main__":
    main()
