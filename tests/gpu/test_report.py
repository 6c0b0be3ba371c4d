"""The figures of the CUDA runtime: times of streams and events, not of the host."""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from pipeline import StepReport
from pipeline.report import CollectiveName, Partition
from tests.gpu import device
from tests.integration.pipeline.reference import Case, Table, batches
from tests.integration.pipeline.test_behaviour import start
from tests.ranks import RankPool

CASE = Case(
    collections=((Table(40_000, ("a", "b")), Table(20_000, ("c",))),), dim=128, steps=12, batch_size=2048, max_ids=10
)
# Times of two CUDA events are exact to about half a microsecond.
EXACT_MS = 0.01


@dataclass(frozen=True)
class Measured:
    """The reports of a training, and what the events of the host's whole loop say about the same steps."""

    reports: list[StepReport]
    loop_ms: float


def measure(cuda: torch.device, schedule: str) -> Measured:
    pipe, _, _ = start(CASE, cuda, schedule)
    source = batches(CASE, dist.get_rank())
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    reports = []
    begin.record()
    for _ in range(CASE.steps):
        pipe.progress(source)
        torch.cuda.synchronize()
        reports.append(pipe.report())
    end.record()
    end.synchronize()
    return Measured(reports, begin.elapsed_time(end))


@pytest.mark.parametrize("schedule", ["sync", "sparse_dist", "prioritized"])
def test_figures_are_sane(cuda_ranks: RankPool, world_size: int, schedule: str) -> None:
    parted = schedule == "prioritized"
    for rank, measured in enumerate(device.run(cuda_ranks, world_size, measure, schedule=schedule)):
        reports = measured.reports
        assert [(report.step, report.rank) for report in reports] == [(step, rank) for step in range(CASE.steps)]
        assert sum(report.step_ms for report in reports) <= measured.loop_ms + EXACT_MS
        for report in reports:
            assert report.samples == CASE.batch_size
            assert report.ids > 0
            assert 0 < report.compute_ms <= report.step_ms + EXACT_MS
            assert 0 < report.comm_ms <= report.step_ms + EXACT_MS
            assert 0 <= report.exposed_ms <= report.comm_ms + EXACT_MS
            assert report.hidden_ms == pytest.approx(report.comm_ms - report.exposed_ms, abs=EXACT_MS)
            assert report.compute_ms + report.exposed_ms <= report.step_ms + EXACT_MS
            assert report.comm_overlap is not None
            for each in report.collectives:
                assert 0 <= each.exposed_ms <= each.ms + EXACT_MS
        sent = sum(each.bytes_sent for report in reports for each in report.collectives)
        assert (sent > 0) == (world_size > 1), "a single device sends nothing"
        parts = {Partition.OL, Partition.NOL} if parted else {None}
        kinds = {(each.name, each.partition) for each in reports[5].collectives}
        for name in (CollectiveName.EMBEDDING, CollectiveName.GRADIENT):
            assert {(name, part) for part in parts} <= kinds
        if parted:
            assert all(0 < (report.id_overlap or 0) < 1 for report in reports[1:])


def test_a_step_is_reported_once_the_device_has_reached_its_end(cuda_ranks: RankPool) -> None:
    [found] = device.run(cuda_ranks, 1, lag_of_reports)
    assert found == {"after a synchronize": 0, "in time": True}


def lag_of_reports(cuda: torch.device) -> dict[str, object]:
    """Without a wait of the host a report may lag behind its step, and must never be ahead of it."""
    pipe, _, _ = start(CASE, cuda, "prioritized")
    source = batches(CASE, dist.get_rank())
    pipe.progress(source)
    torch.cuda.synchronize()
    steps = []
    for step in range(1, CASE.steps):
        pipe.progress(source)
        steps.append((step, pipe.report().step))
    torch.cuda.synchronize()
    return {
        "after a synchronize": CASE.steps - 1 - pipe.report().step,
        "in time": all(reported <= step for step, reported in steps),
    }
