"""The monitor without Ray: what it delivers, how it ends, and what it knows after it was lost."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.unit.workers.samples import batch
from workers.reports import JobPlan, JobResult, JobStop, ReportBatch, RunRecord
from workers.telemetry.archive import ReportFolder
from workers.telemetry.clock import ClockOffset
from workers.telemetry.courier import Courier
from workers.telemetry.delivery import Delivery
from workers.telemetry.monitor import Destination, Monitor
from workers.telemetry.status import Memory, Status

PLAN = JobPlan(steps=4, world_size=2, prioritized={}, not_prioritized={})
RESULT = JobResult(steps=4, samples=8, seconds=1.0, loss=0.5, metrics={}, checkpoint=None)


def drive(*what: Callable[[Monitor], Awaitable[None]], world_size: int | None = 1) -> list[ReportBatch]:
    """What arrives while each coroutine drives a monitor of its own; nothing may still run when it is through."""
    batches: list[ReportBatch] = []

    def take(request: httpx.Request) -> httpx.Response:
        batches.append(ReportBatch.model_validate_json(request.content))
        return httpx.Response(204)

    async def run() -> None:
        async with httpx.AsyncClient(base_url="http://service.test", transport=httpx.MockTransport(take)) as client:
            for number, each in enumerate(what):
                target = Destination("http://service.test", "secret")
                monitor = Monitor("job-1", world_size, target, follows=number > 0)
                monitor._courier = Courier(Delivery(monitor._outbox, client, "job-1"))
                await each(monitor)
                await asyncio.sleep(0)
                assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    return batches


def steps(batches: list[ReportBatch]) -> list[int]:
    return [sample.step for each in batches for sample in each.samples]


def test_what_is_finished_leaves_nothing_running() -> None:
    async def finish(monitor: Monitor) -> None:
        await monitor.ingest(batch(0, 1))
        assert await monitor.finish(10)

    assert steps(drive(finish)) == [0, 1]


def test_reports_that_come_after_a_finish_are_delivered_too() -> None:
    async def go_on(monitor: Monitor) -> None:
        for step in range(2):
            await monitor.ingest(batch(step, recorded=step + 1))
            assert await monitor.finish(10)

    assert steps(drive(go_on)) == [0, 1]


def test_no_proxy_stands_before_the_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    monitor = Monitor("job-1", 1, Destination("http://127.0.0.1:8420", "secret"))
    assert monitor._courier is not None
    assert isinstance(monitor._courier._target, Delivery)
    assert monitor._courier._target._client._mounts == {}


def test_samples_stand_on_the_monitors_clock() -> None:
    async def tell(monitor: Monitor) -> None:
        await monitor.ingest(batch(0, clock=ClockOffset(1500.0, 0.5)))
        await monitor.ingest(batch(1, recorded=2))
        assert await monitor.finish(10)

    (told,) = drive(tell)
    ours, own = told.samples
    on_its_own_clock = datetime(2026, 1, 1, tzinfo=UTC)
    assert (ours.time, ours.clock_offset_ms, ours.clock_uncertainty_ms) == (
        on_its_own_clock + timedelta(seconds=1.5),
        1500.0,
        0.5,
    )
    assert (own.time, own.clock_offset_ms, own.clock_uncertainty_ms) == (on_its_own_clock, None, None)


def test_the_plan_of_an_attempt_says_how_many_ranks_make_a_step_complete() -> None:
    async def resize(monitor: Monitor) -> None:
        await monitor.announce(PLAN)
        for rank in range(2):
            await monitor.ingest(batch(0, 1, rank=rank))
        await monitor.announce(PLAN.model_copy(update={"attempt": 1, "world_size": 1}))
        await monitor.ingest(batch(1, attempt=1))
        status = await monitor.status(None)
        assert status.progress is not None
        assert (status.progress.attempt, status.progress.ranks, status.progress.step) == (1, 1, 2)
        assert (status.attempt, status.first_step) == (1, 1)
        assert await monitor.finish(10)

    batches = drive(resize, world_size=None)
    plans = [each.plan for each in batches if each.plan is not None]
    assert plans[-1].world_size == 1


def test_a_plan_that_is_told_again_or_too_late_changes_nothing() -> None:
    later = PLAN.model_copy(update={"attempt": 1})

    async def tell(monitor: Monitor) -> None:
        for plan in (PLAN, PLAN, later, PLAN):
            await monitor.announce(plan)
            assert await monitor.finish(10)
        assert (await monitor.status(None)).plan == later

    assert [each.plan for each in drive(tell)] == [PLAN, later]


def lose(seen: list[Status]) -> Callable[[Monitor], Awaitable[None]]:
    """The life of a monitor until it is killed; the driver has asked it for its status."""

    async def live(monitor: Monitor) -> None:
        assert await monitor.next_attempt() == 0
        assert await monitor.next_attempt() == 1
        await monitor.announce(PLAN.model_copy(update={"attempt": 1}))
        for rank in range(2):
            await monitor.ingest(batch(0, 1, 2, rank=rank, attempt=1, recorded=5))
        await monitor.tell_trouble("rank 0: no")
        assert await monitor.finish(10)
        seen.append(await monitor.status(seen[-1].memory if seen else None))

    return live


def test_the_monitor_that_comes_after_knows_what_the_driver_kept() -> None:
    seen: list[Status] = []

    async def come_back(monitor: Monitor) -> None:
        await monitor.ingest(batch(4, attempt=1, recorded=6))
        memory = seen[-1].memory
        again = await monitor.status(memory)
        assert (again.plan, again.progress, again.dropped) == (seen[-1].plan, seen[-1].progress, 4)
        assert (again.attempt, again.first_step, again.trouble) == (1, 0, seen[-1].trouble)
        for other in (memory, again.memory):
            assert (await monitor.status(other)).dropped == 4, "it takes a memory once"
        await monitor.ingest(batch(4, rank=1, attempt=1, recorded=6))
        settled = await monitor.conclude(memory, RESULT, 10)
        assert (settled.delivered, settled.dropped) == (True, 4)
        assert (await monitor.summary(memory)).totals.rank_steps == 8
        assert await monitor.next_attempt() == 2

    batches = drive(lose(seen), come_back, world_size=None)
    assert sorted(steps(batches)) == [0, 0, 1, 1, 2, 2, 4, 4]
    assert batches[-1].result == RESULT
    assert batches[-1].dropped == 4
    plans = [each.plan for each in batches if each.plan is not None]
    assert plans == [PLAN.model_copy(update={"attempt": 1})] * 2, "nobody knows whether it was delivered before"


def test_a_memory_outlives_several_monitors() -> None:
    seen: list[Status] = []

    async def live_on(monitor: Monitor) -> None:
        seen.append(await monitor.status(seen[-1].memory))
        assert await monitor.finish(10)

    async def end(monitor: Monitor) -> None:
        assert (await monitor.summary(seen[-1].memory)).totals.rank_steps == 6
        assert await monitor.finish(10)

    drive(lose(seen), live_on, live_on, end)


def test_troubles_are_counted_over_all_monitors() -> None:
    memories: list[Memory] = []

    async def first(monitor: Monitor) -> None:
        for _ in range(2):
            await monitor.tell_trouble("rank 0: no")
        memories.append((await monitor.status(None)).memory)

    async def second(monitor: Monitor) -> None:
        await monitor.tell_trouble("rank 1: no")
        trouble = (await monitor.status(memories[0])).trouble
        assert trouble is not None
        assert (trouble.number, trouble.message) == (3, "rank 1: no")
        assert await monitor.finish(10)

    drive(first, second)


def test_a_stop_is_for_whoever_asks_and_says_whether_there_are_steps_to_save() -> None:
    async def stop(monitor: Monitor) -> None:
        assert not await monitor.stops()
        assert not await monitor.stop()
        assert await monitor.stops()
        await monitor.announce(PLAN)
        assert await monitor.stop()
        assert (await monitor.conclude(None, JobStop(saved_at_step=3), 10)).delivered

    batches = drive(stop)
    assert batches[-1].stop == JobStop(saved_at_step=3)
    record = RunRecord(job_id="job-1")
    for each in batches:
        record = record.after(each)
    assert record == RunRecord(job_id="job-1", plan=PLAN, stop=JobStop(saved_at_step=3))


def test_without_a_control_plane_the_reports_go_into_the_storage(tmp_path: Path) -> None:
    async def run() -> None:
        monitor = Monitor("job-1", 1, ReportFolder(str(tmp_path), "job-1"))
        await monitor.announce(PLAN)
        await monitor.ingest(batch(0, recorded=2))
        settled = await monitor.conclude(None, RESULT, 5)
        assert (settled.delivered, settled.dropped) == (True, 1)

    asyncio.run(run())
    folder = tmp_path / "job-1" / "telemetry"
    assert len(list(folder.glob("steps-*.parquet"))) == 1
    record = RunRecord.model_validate_json((folder / "_run.json").read_bytes())
    assert record == RunRecord(job_id="job-1", plan=PLAN, result=RESULT, dropped=1)


def test_without_anybody_to_tell_only_the_totals_are_kept() -> None:
    async def run() -> None:
        monitor = Monitor("job-1", 1, None)
        await monitor.ingest(batch(0, 1))
        assert (await monitor.conclude(None, RESULT, 10)).delivered
        assert (await monitor.summary(None)).totals.rank_steps == 2

    asyncio.run(run())
