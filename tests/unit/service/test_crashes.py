"""The service dies at any call to Ray or to the database, once or often: after its restart, the end is the same."""

import asyncio
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st
from structlog.testing import capture_logs

from service.cluster.gateway import RayStatus, RaySubmission
from service.models import JobState
from service.problems import Problem
from service.security.audit import AuditAction, Deed
from service.services import Services
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import JobStore
from tests.unit.service.fakes import FakeClock, FakeRay, sample
from workers.job import parse_job
from workers.reports import ReportBatch

ROUNDS = 100
# In so many calls a life of the service gets once round.
LIFE = 24
DEED = Deed(None, AuditAction.SUBMIT)

# What becomes of the runs of each job, one after the other, when the service never dies.
END = {
    "plain": (JobState.SUCCEEDED, 1),
    "lost-once": (JobState.SUCCEEDED, 2),
    "makes-room": (JobState.SUCCEEDED, 2),
    "urgent": (JobState.SUCCEEDED, 1),
    "fails": (JobState.FAILED, 1),
    "is-stopped": (JobState.STOPPED, 1),
}


class CrashError(Exception):
    """The service is killed here."""


@dataclass
class Crashes:
    """Counts the calls of all lives of the service, and ends its life before those in `at`."""

    at: Collection[int]
    calls: Iterator[int] = field(default_factory=itertools.count)
    last: int = -1

    def of(self, part: Any) -> Any:
        """`part` with calls that may be the last."""
        return _Mortal(part, self)

    def call(self) -> None:
        self.last = next(self.calls)
        if self.last in self.at:
            raise CrashError


class _Mortal:
    def __init__(self, part: Any, crashes: Crashes) -> None:
        self._part, self._crashes = part, crashes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._part, name)

        async def called(*arguments: Any, **options: Any) -> Any:
            try:
                self._crashes.call()
            except CrashError:
                if name == "submit":
                    self._part.late[arguments[0].id] = arguments[0]
                raise
            return await method(*arguments, **options)

        return called


@dataclass
class World(FakeRay):
    """A cluster on which jobs do what their names say, a step of it in each round."""

    starts: Counter[str] = field(default_factory=Counter)
    names: dict[str, str] = field(default_factory=dict)
    stops: set[str] = field(default_factory=set)
    reported: set[str] = field(default_factory=set)
    late: dict[str, RaySubmission] = field(default_factory=dict)

    async def submit(self, submission: RaySubmission) -> None:
        if submission.id in self.late:
            # What a life that is over had sent arrives first.
            await self.submit(self.late.pop(submission.id))
        await super().submit(submission)
        self.starts[self.names[submission.id]] += 1
        self.reported.discard(submission.id)
        self.stops.discard(submission.id)

    async def stop(self, job_id: str) -> None:
        await super().stop(job_id)
        self.stops.add(job_id)

    async def goes_on(self, services: Services) -> None:
        for job_id, seen in list(self.jobs.items()):
            name = self.names[job_id]
            if seen.status is RayStatus.PENDING:
                self.says(job_id, RayStatus.RUNNING)
            elif seen.status is RayStatus.RUNNING and job_id not in self.reported:
                await self._report(services, job_id)
            elif seen.status is RayStatus.RUNNING:
                self._end(job_id, name)

    def _end(self, job_id: str, name: str) -> None:
        first = self.starts[name] == 1
        if job_id in self.stops:
            self.says(job_id, RayStatus.STOPPED)
        elif name == "lost-once" and first:
            del self.jobs[job_id]
        elif name == "fails":
            self.says(job_id, RayStatus.FAILED, "exit code 1")
        elif not (name == "is-stopped" or (name == "makes-room" and first)):
            self.says(job_id, RayStatus.SUCCEEDED)

    async def _report(self, services: Services, job_id: str) -> None:
        """As a job's monitor does, which tries again until it is heard."""
        batch = ReportBatch.model_validate({"samples": [sample(0, 0)]})
        try:
            await services.telemetry.accept(job_id, self.token(job_id), batch.model_dump_json().encode())
        except Problem:
            return
        self.reported.add(job_id)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a database that has its tables."""
    home = tmp_path_factory.mktemp("empty")

    async def make() -> None:
        database = await Database.open(Settings(home=home).database)
        await database.close()

    asyncio.run(make())
    return home


@pytest.fixture
def end_of(empty: Path, tmp_path: Path) -> Callable[[Collection[int]], tuple[dict[str, Any], int]]:
    """Run everything to its end with the service dying before the given calls: the end, and how many calls it took."""
    homes = itertools.count()

    def run(at: Collection[int]) -> tuple[dict[str, Any], int]:
        home = tmp_path / str(next(homes))
        shutil.copytree(empty, home)
        crashes = Crashes(at)
        with capture_logs():
            end = asyncio.run(_live(Settings(home=home, ray_address="http://ray.test:8265"), crashes))
        shutil.rmtree(home)
        return end, crashes.last + 1

    return run


async def _live(settings: Settings, crashes: Crashes) -> dict[str, Any]:
    world, clock = World(cpus=4), FakeClock()
    database = await Database.open(settings.database)
    jobs = JobStore(database)
    try:
        services = _born(settings, database, world, clock, crashes)
        for name in ("plain", "lost-once", "makes-room", "fails"):
            await _submit(jobs, world, clock, name)
        for number in range(ROUNDS):
            if number == 3:
                await _submit(jobs, world, clock, "is-stopped")
            active = [(job.name, job.has_steps) for job in await jobs.active()]
            if number > 5 and active == [("makes-room", True)] and "job-urgent" not in world.names:
                await _submit(jobs, world, clock, "urgent")
            if world.starts["is-stopped"] == 1:
                await _stop(jobs, clock, "is-stopped")
            clock.forward(20)
            try:
                await services.reconciler.run_once()
            except CrashError:
                services = _born(settings, database, world, clock, crashes)
            await world.goes_on(services)
            if len(world.names) == len(END) and not await jobs.active():
                return await _end(jobs, world)
        raise AssertionError(f"still there: {await jobs.active()}")
    finally:
        await database.close()


def _born(settings: Settings, database: Database, world: World, clock: FakeClock, crashes: Crashes) -> Services:
    services = Services.build(settings, database, world, clock)
    services.reconciler._jobs = crashes.of(services.reconciler._jobs)
    services.reconciler._gateway = crashes.of(world)
    services.logs._gateway = crashes.of(world)
    return services


async def _submit(jobs: JobStore, world: World, clock: FakeClock, name: str) -> None:
    urgent = name == "urgent"
    spec = parse_job(
        {
            "name": name,
            "workers": {"count": 4 if urgent else 1},
            "checkpoint": {"every_steps": 10 if name == "makes-room" else None},
            "queue": {"priority": 5 if urgent else 0},
        }
    )
    world.names[f"job-{name}"] = name
    await jobs.add(f"job-{name}", spec, clock(), None, DEED)


async def _stop(jobs: JobStore, clock: FakeClock, name: str) -> None:
    alive = {JobState.STARTING, JobState.RUNNING}
    await jobs.change(f"job-{name}", clock(), alive, state=JobState.STOPPING, stop_requested=True)


async def _end(jobs: JobStore, world: World) -> dict[str, Any]:
    alive = {job_id for job_id, seen in world.jobs.items() if seen.status in (RayStatus.PENDING, RayStatus.RUNNING)}
    assert alive == set(), "nothing is left behind"
    records, _ = await jobs.page(None, None, None, 100)
    return {record.name: (record.state, world.starts[record.name]) for record in records}


def test_without_a_crash(end_of: Callable[[Collection[int]], tuple[dict[str, Any], int]]) -> None:
    end, calls = end_of(())
    assert end == END
    assert calls > 4 * LIFE


@pytest.mark.parametrize("first", range(LIFE))
def test_a_crash_at_every_call(end_of: Callable[[Collection[int]], tuple[dict[str, Any], int]], first: int) -> None:
    """To die after a call is to die before the next one: what happens between them is forgotten."""
    assert end_of(range(first, 1000, LIFE))[0] == END


@effort(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(0, 150), min_size=1, max_size=12))
def test_many_crashes(end_of: Callable[[Collection[int]], tuple[dict[str, Any], int]], at: set[int]) -> None:
    assert end_of(at)[0] == END
