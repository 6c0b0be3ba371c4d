"""Jobs that have ended long ago, in the database of a control plane before it starts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import insert

from service.models import JobState
from service.store.database import Database
from service.store.engine import parse_url
from service.store.tables import events, jobs
from workers.job import parse_job
from workers.reports import JobResult

PROJECTS = ("ads", "feed", "ranking", "search")
_AT_ONCE = 5000
_TOLD = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING)
_ENDS = (JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


async def fill(file: Path, count: int) -> None:
    """Write `count` ended jobs, each with the events of its life, into a new SQLite file."""
    database = await Database.open(parse_url(f"sqlite:///{file}"))
    try:
        for first in range(0, count, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, count))
            async with database.write() as connection:
                await connection.execute(insert(jobs), [_job(number, count) for number in numbers])
                await connection.execute(
                    insert(events), [event for number in numbers for event in _life(number, count)]
                )
    finally:
        await database.close()


def job_id(number: int) -> str:
    """The id of a job of the past."""
    return f"past-{number:06d}"


def _end(number: int) -> JobState:
    return _ENDS[number % len(_ENDS)]


def _submitted_at(number: int, count: int) -> datetime:
    return datetime.now(UTC) - timedelta(minutes=count - number)


def _job(number: int, count: int) -> dict[str, object]:
    project, at = PROJECTS[number % len(PROJECTS)], _submitted_at(number, count)
    spec = parse_job({"name": f"nightly-{number}", "queue": {"project": project}})
    result = JobResult(steps=300, samples=300_000, seconds=60.0, loss=0.58, metrics={"auc": 0.73}, checkpoint=None)
    end = _end(number)
    return {
        "id": job_id(number), "name": spec.name, "project": project, "priority": 0, "state": end, "on_ray": True,
        "submitted_at": at, "started_at": at, "ended_at": at + timedelta(minutes=1), "attempts": 1,
        "reason": "rank 1 on node 10.0.0.7: ValueError: no such column" if end is JobState.FAILED else None,
        "spec": spec.model_dump_json(), "result": result.model_dump_json() if end is JobState.SUCCEEDED else None,
    }  # fmt: skip


def _life(number: int, count: int) -> list[dict[str, object]]:
    at = _submitted_at(number, count)
    states = (*_TOLD, _end(number))
    return [{"job_id": job_id(number), "time": at, "state": state, "reason": None} for state in states]
