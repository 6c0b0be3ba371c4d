"""Fences and tensor lifetimes on CUDA, proven on a recording stand-in: no GPU, no waiting."""

from dataclasses import dataclass

import pytest
import torch

from pipeline import schedules
from pipeline.executor import Executor, Inputs, NoMoreBatches, UndeclaredNeed
from pipeline.runtime.cuda import CudaRuntime
from pipeline.schedule import Lane, Need, Schedule
from tests.unit.pipeline.recording import RecordingCuda, RecordingEvent, RecordingStream, RecordingTensor

BATCHES = 5


@dataclass(frozen=True)
class Read:
    """A stage read the output of another one."""

    consumer: str
    batch: int
    need: Need
    tensor: RecordingTensor
    stream: RecordingStream
    waited: tuple[RecordingEvent, ...]


def run(schedule: Schedule) -> list[Read]:
    """Run a schedule whose every stage reads all its needs and produces one tensor on its lane's stream."""
    cuda = RecordingCuda()
    runtime = CudaRuntime(0, cuda, torch.device("cuda"))
    reads: list[Read] = []

    def work(inputs: Inputs) -> list[RecordingTensor]:
        stage = inputs._stage
        if stage.name == "input_splits" and inputs.batch == BATCHES:
            raise NoMoreBatches([])
        stream = cuda.current_stream()
        for need in stage.needs:
            value = inputs(need.stage, need.delta)
            if value is not None:
                reads.append(Read(stage.name, inputs.batch, need, value[0], stream, tuple(stream.waited)))
        return [RecordingTensor(stream)]

    executor = Executor(schedule, {stage.name: work for stage in schedule.stages}, runtime)
    while not executor.finished:
        executor.run_step()
    return reads


@pytest.mark.parametrize("schedule", schedules.ALL.values(), ids=list(schedules.ALL))
def test_what_crosses_streams_is_fenced_and_kept_alive(schedule: Schedule) -> None:
    reads = run(schedule)
    assert {(read.consumer, read.need) for read in reads} == {
        (stage.name, need) for stage in schedule.stages for need in stage.needs
    }
    for read in reads:
        if read.tensor.born_on is not read.stream:
            assert any(event.stream is read.tensor.born_on for event in read.waited), read
            assert read.stream in read.tensor.recorded, read


def test_lanes_have_streams_of_their_own() -> None:
    lanes = {stage.name: stage.lane for stage in schedules.PRIORITIZED.stages}
    streams: dict[Lane, set[RecordingStream]] = {}
    for read in run(schedules.PRIORITIZED):
        streams.setdefault(lanes[read.need.stage], set()).add(read.tensor.born_on)
    assert all(len(own) == 1 for own in streams.values())
    assert len({stream for own in streams.values() for stream in own}) == len(Lane)


def test_a_stage_reads_only_what_it_declares() -> None:
    runtime = CudaRuntime(0, RecordingCuda(), torch.device("cuda"))
    functions = {stage.name: (lambda inputs: inputs("optimizer")) for stage in schedules.SYNC.stages}
    with pytest.raises(UndeclaredNeed, match="copy_batch reads optimizer, which its schedule does not declare"):
        Executor(schedules.SYNC, functions, runtime).run_step()
