"""Jobs that ended long ago: their steps go into the archive, and then they go themselves."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow.parquet as pq
import pytest
from structlog.typing import EventDict

from service import retention as retention_module
from service.archive import ArchiveFile, StepArchive
from service.cluster.gateway import RayStatus
from service.problems import ProblemType
from service.retention import Retention
from service.settings import Settings
from service.store import retention as store_module
from service.store.retention import RetentionStore
from service.store.steps import StepStore
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import sample
from tests.unit.service.test_api import problem
from workers.reports import StepSample
from workers.telemetry.archive import SCHEMA, table_of

pytestmark = pytest.mark.anyio

DAY_S = 24 * 3600
STEPS = 5


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"archive_steps_after_days": 30.0, "remove_jobs_after_days": 365.0})


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "_PAGE", 4)
    monkeypatch.setattr(store_module, "_DELETED_AT_ONCE", 5)


async def ended(plane: Plane) -> str:
    """A job that has ended now, after its ranks have reported `STEPS` steps."""
    job_id = await plane.with_steps(STEPS)
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(2)
    checkpoint = plane.settings.storage / job_id / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text("1")
    return job_id


async def stored(plane: Plane, job_id: str) -> list[StepSample]:
    return await StepStore(plane.services.database).page(job_id, -1, None, None, 10_000)


def archived(plane: Plane, job_id: str) -> list[dict[str, Any]]:
    path = plane.settings.home / "archive" / f"{job_id}.parquet"
    rows: list[dict[str, Any]] = pq.read_table(path, schema=SCHEMA).to_pylist() if path.exists() else []
    return rows


def rows_of(samples: list[StepSample]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table_of(samples).to_pylist()
    return rows


async def test_steps_are_archived_when_their_job_ended_long_ago(plane: Plane) -> None:
    job_id = await ended(plane)
    samples = await stored(plane, job_id)
    plane.clock.forward(30 * DAY_S)
    await plane.services.retention.run_once()
    assert await stored(plane, job_id) == samples
    plane.clock.forward(1)
    for _ in range(2):
        await plane.services.retention.run_once()
        assert archived(plane, job_id) == rows_of(samples)
        assert await stored(plane, job_id) == []
    assert len(samples) == 2 * STEPS
    assert (await plane.job(job_id))["state"] == "succeeded"
    assert not list((plane.settings.home / "archive").glob("*.partial"))


async def test_who_asks_for_archived_steps_is_told_where_they_are(plane: Plane) -> None:
    job_id = await ended(plane)
    plane.clock.forward(31 * DAY_S)
    await plane.services.retention.run_once()
    for route in ("steps", "overlap", "trace"):
        document = problem(await plane.http.get(f"/v1/jobs/{job_id}/{route}"), ProblemType.STEPS_ARCHIVED)
        assert document["detail"].startswith(f"archive/{job_id}.parquet in the service's home has the steps")
    problem(await plane.report(job_id, sample(STEPS, 0)), ProblemType.STEPS_ARCHIVED)
    assert await stored(plane, job_id) == []
    assert (await plane.http.delete(f"/v1/jobs/{job_id}")).status_code == 204
    assert archived(plane, job_id) == []


async def test_jobs_are_removed_with_all_that_belongs_to_them(plane: Plane) -> None:
    job_id = await ended(plane)
    kept = await plane.submit(workers={"count": 1})
    plane.clock.forward(365 * DAY_S)
    await plane.services.retention.run_once()
    assert (plane.settings.logs / f"{job_id}.log").exists()
    assert archived(plane, job_id)
    plane.clock.forward(1)
    await plane.services.retention.run_once()
    problem(await plane.http.get(f"/v1/jobs/{job_id}"), ProblemType.UNKNOWN_JOB)
    assert not [path for path in plane.settings.home.rglob("*") if job_id in path.name]
    async with plane.services.database.read() as connection:
        for table in ("steps", "events", "worker_groups"):
            count = f"SELECT count(*) FROM {table} WHERE job_id = '{job_id}'"
            assert (await connection.exec_driver_sql(count)).scalar() == 0
    assert (await plane.job(kept))["state"] == "queued"


async def test_jobs_may_be_removed_without_an_archive(plane: Plane) -> None:
    job_id = await ended(plane)
    settings = plane.settings.model_copy(update={"archive_steps_after_days": None})
    plane.clock.forward(366 * DAY_S)
    await _retention(plane, settings).run_once()
    problem(await plane.http.get(f"/v1/jobs/{job_id}"), ProblemType.UNKNOWN_JOB)
    assert not settings.archive.exists()


async def test_nothing_is_taken_away_unless_it_is_asked_for(plane: Plane) -> None:
    job_id = await ended(plane)
    samples = await stored(plane, job_id)
    assert (Settings().archive_steps_after_days, Settings().remove_jobs_after_days) == (None, None)
    unset = {"archive_steps_after_days": None, "remove_jobs_after_days": None}
    retention = _retention(plane, plane.settings.model_copy(update=unset))
    plane.clock.forward(100_000 * DAY_S)
    await retention.run_once()
    await asyncio.wait_for(retention.run(), 30)
    assert await stored(plane, job_id) == samples


async def test_jobs_that_have_not_ended_stay(plane: Plane) -> None:
    job_id = await plane.with_steps(STEPS)
    plane.clock.forward(1000 * DAY_S)
    await plane.services.retention.run_once()
    assert len(await stored(plane, job_id)) == 2 * STEPS


async def test_a_full_disk_keeps_the_steps_where_they_are(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, events: list[EventDict]
) -> None:
    job_id = await ended(plane)
    samples = await stored(plane, job_id)
    plane.clock.forward(31 * DAY_S)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ArchiveFile, "add", full)
        await plane.services.retention.run_once()
    assert await stored(plane, job_id) == samples
    assert [event["job_id"] for event in events if event["event"] == "job_stays_in_the_database"] == [job_id]
    assert list(plane.settings.archive.iterdir()) == []
    await plane.services.retention.run_once()
    assert archived(plane, job_id) == rows_of(samples)


class Crash(BaseException):
    """The service dies."""


def crashing(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], bool]:
    """Let the service die before or after one of the calls that change something; whether it has died is answered."""
    count = 0
    seams = [
        (RetentionStore, "freeze_steps"),
        (RetentionStore, "delete_some_steps"),
        (RetentionStore, "delete_job"),
        (StepStore, "page"),
        (StepArchive, "path"),
        (StepArchive, "forget"),
        (ArchiveFile, "add"),
    ]

    def tick() -> None:
        nonlocal count
        count += 1
        if count == at:
            raise Crash

    for owner, name in seams:
        monkeypatch.setattr(owner, name, _ticking(getattr(owner, name), tick))
    return lambda: count >= at


def _ticking(call: Callable[..., Any], tick: Callable[[], None]) -> Callable[..., Any]:
    async def awaited(*args: Any) -> Any:
        tick()
        answer = await call(*args)
        tick()
        return answer

    def plain(*args: Any) -> Any:
        tick()
        answer = call(*args)
        tick()
        return answer

    return awaited if asyncio.iscoroutinefunction(call) else plain


async def test_a_crash_at_any_call_loses_nothing(plane: Plane) -> None:
    died, at = True, 0
    while died:
        at += 1
        job_id = await ended(plane)
        samples = await stored(plane, job_id)
        plane.clock.forward(31 * DAY_S)
        with pytest.MonkeyPatch.context() as patch:
            has_died = crashing(patch, at)
            with suppress(Crash):
                await plane.services.retention.run_once()
            died = has_died()
        left, file = rows_of(await stored(plane, job_id)), archived(plane, job_id)
        assert file in ([], rows_of(samples))
        assert left == rows_of(samples) or file
        await plane.services.retention.run_once()
        assert archived(plane, job_id) == rows_of(samples)
        assert await stored(plane, job_id) == []
    assert at > 20


async def test_a_crash_while_a_job_is_removed(plane: Plane) -> None:
    died, at = True, 0
    settings = plane.settings.model_copy(update={"archive_steps_after_days": None})
    while died:
        at += 1
        job_id = await ended(plane)
        plane.clock.forward(366 * DAY_S)
        with pytest.MonkeyPatch.context() as patch:
            has_died = crashing(patch, at)
            with suppress(Crash):
                await _retention(plane, settings).run_once()
            died = has_died()
        await _retention(plane, settings).run_once()
        problem(await plane.http.get(f"/v1/jobs/{job_id}"), ProblemType.UNKNOWN_JOB)
        assert not [path for path in settings.home.rglob("*") if job_id in path.name]
    assert at > 10


def _retention(plane: Plane, settings: Settings) -> Retention:
    services = plane.services
    return Retention(settings, services.database, services.archive, services.logs, plane.clock)
