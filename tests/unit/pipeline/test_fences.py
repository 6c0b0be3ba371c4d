"""Fences, lifetimes and waits of every schedule on both runtimes, worked out with clocks instead of devices."""

import pytest

from pipeline import schedules
from pipeline.report import CollectiveName
from pipeline.runtime import CpuRuntime
from pipeline.schedule import Lane, Schedule
from tests.unit.pipeline.clocks import HostWork
from tests.unit.pipeline.fences import cpu_faults, cuda_faults, lane_streams

every_schedule = pytest.mark.parametrize("schedule", schedules.ALL.values(), ids=list(schedules.ALL))


@every_schedule
def test_cuda_reads_nothing_too_early_and_loses_nothing_too_early(schedule: Schedule) -> None:
    assert cuda_faults(schedule) == []


@every_schedule
@pytest.mark.parametrize("ended", [False, True])
def test_cpu_waits_for_every_transfer_before_it_reads(schedule: Schedule, ended: bool) -> None:
    assert cpu_faults(schedule, ended_before_the_fence=ended) == []


@every_schedule
def test_each_lane_has_a_stream_of_its_own(schedule: Schedule) -> None:
    streams = lane_streams(schedule)
    assert all(len(own) == 1 for own in streams.values())
    assert len({stream for own in streams.values() for stream in own}) == len(streams)


@pytest.mark.parametrize("ended", [False, True])
def test_a_failed_transfer_is_raised_where_it_is_awaited(ended: bool) -> None:
    runtime = CpuRuntime(0)
    transfer = HostWork(failing=True)
    runtime.adopt(CollectiveName.EMBEDDING, [transfer], 0, 0)
    output = runtime.finish(Lane.PRIORITY, None)
    if ended:
        transfer.end()
    with pytest.raises(ConnectionError):
        runtime.fence(Lane.COMPUTE, output)
