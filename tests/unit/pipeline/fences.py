"""Runs a schedule on a runtime whose device is made of clocks, and lists what it reads too early or loses too early."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pipeline.executor import Executor, Inputs, NoMoreBatches
from pipeline.report import CollectiveName
from pipeline.runtime import CpuRuntime, CudaRuntime, Runtime
from pipeline.schedule import Lane, Schedule, Stage
from tests.unit.pipeline.clocks import ClockedCuda, ClockedStream, ClockedTensor, ClockedWork, HostWork

BATCHES = 5
TRANSFERS = ("copy_batch", "input_splits", "input_dist", "overlap")


@dataclass(frozen=True)
class Nested:
    """Stages hide their tensors in dataclasses, lists and dictionaries, so this one does too."""

    parts: dict[str, list[ClockedTensor]]

    @property
    def tensor(self) -> ClockedTensor:
        return self.parts["only"][0]


def starts_a_collective(stage: Stage) -> bool:
    return stage.name.endswith("_a2a") or stage.name in TRANSFERS


def cuda_faults(schedule: Schedule) -> list[str]:
    """What goes wrong on CUDA: a stage reads what its stream is not ordered after, waits less often than it has needs
    on other lanes, or reads memory that the allocator may give away under it.
    """
    cuda = ClockedCuda()
    runtime = CudaRuntime(0, cuda, torch.device("cuda"))
    lanes = {stage.name: stage.lane for stage in schedule.stages}
    waits_before: dict[ClockedStream, int] = {}
    faults: list[str] = []

    def work(inputs: Inputs) -> Nested:
        stage, stream = inputs._stage, cuda.current_stream()
        _end_of_data(inputs)
        foreign = 0
        for need in stage.needs:
            value: Nested | None = inputs(need.stage, need.delta)
            if value is None:
                continue
            foreign += lanes[need.stage] is not stage.lane
            if not stream.is_after(value.tensor.ready):
                faults.append(f"{stage.name}({inputs.batch}) reads {need} before it is there")
            if stream is not value.tensor.allocated_on and stream not in value.tensor.recorded:
                faults.append(f"{stage.name}({inputs.batch}) reads {need} in memory that may be reused")
        if stream.waits - waits_before.get(stream, 0) < foreign:
            faults.append(f"{stage.name}({inputs.batch}) has fewer fences than needs on other lanes")
        waits_before[stream] = stream.waits
        ready = stream.work()
        if starts_a_collective(stage):
            collective = ClockedWork(cuda)
            runtime.adopt(CollectiveName.INPUT_DIST, [collective], 0, 0)
            ready = collective.done
        return Nested({"only": [ClockedTensor(stream, ready)]})

    _run(schedule, work, runtime)
    return faults


def cpu_faults(schedule: Schedule, *, ended_before_the_fence: bool = False) -> list[str]:
    """What goes wrong on CPU: a stage reads what a transfer brings before the host has waited for the transfer."""
    runtime = CpuRuntime(0)
    host = ClockedStream("host")
    faults: list[str] = []

    def work(inputs: Inputs) -> Nested:
        stage = inputs._stage
        _end_of_data(inputs)
        for need in stage.needs:
            value: Nested | None = inputs(need.stage, need.delta)
            if value is not None and value.tensor.work is not None and not value.tensor.work.waited:
                faults.append(f"{stage.name}({inputs.batch}) reads {need} without waiting for it")
        transfer = HostWork() if starts_a_collective(stage) else None
        if transfer is not None:
            runtime.adopt(CollectiveName.INPUT_DIST, [transfer], 0, 0)
            if ended_before_the_fence:
                transfer.end()
        return Nested({"only": [ClockedTensor(host, host.work(), transfer)]})

    _run(schedule, work, runtime)
    return faults


def lane_streams(schedule: Schedule) -> dict[Lane, set[ClockedStream]]:
    """The streams on which the stages of each lane ran."""
    cuda = ClockedCuda()
    streams: dict[Lane, set[ClockedStream]] = {}

    def work(inputs: Inputs) -> None:
        _end_of_data(inputs)
        streams.setdefault(inputs._stage.lane, set()).add(cuda.current_stream())

    _run(schedule, work, CudaRuntime(0, cuda, torch.device("cuda")))
    return streams


def _run(schedule: Schedule, work: Callable[[Inputs], object], runtime: Runtime) -> None:
    executor = Executor(schedule, {stage.name: work for stage in schedule.stages}, runtime)
    while not executor.finished:
        executor.run_step()


def _end_of_data(inputs: Inputs) -> None:
    if inputs._stage.name == "input_splits" and inputs.batch == BATCHES:
        raise NoMoreBatches([])
