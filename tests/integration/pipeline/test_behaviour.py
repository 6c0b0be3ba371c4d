"""What a training loop may do with the pipeline besides progress(): flush, evaluate, change rates, run out of data."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.model_parallel import DistributedModelParallel

from pipeline import StepReport, TrainPipeline, schedules
from pipeline.errors import InvalidSchedule, PendingGradients, PipelineError, UnevenData
from pipeline.executor import UndeclaredNeed
from pipeline.report import CollectiveName, Partition
from pipeline.schedule import Need, Schedule
from tests.integration.pipeline.reference import Batch, Case, Table, batches, build, differences, state
from tests.ranks import RankPool

SCHEDULES = ["sync", "sparse_dist", "prioritized"]
Pipe = TrainPipeline[Batch, torch.Tensor]


def start(case: Case, device: torch.device, schedule: str | Schedule) -> tuple[Pipe, Any, torch.optim.Optimizer]:
    model, optimizer = build(case, device)
    return TrainPipeline(model, optimizer, device, schedule=schedule), model, optimizer


def plain_steps(
    model: DistributedModelParallel, optimizer: torch.optim.Optimizer, source: Iterator[Batch]
) -> Iterator[int]:
    for step, batch in enumerate(source):
        optimizer.zero_grad()
        loss, _ = model(batch)
        loss.backward()
        optimizer.step()
        yield step


def drain(pipe: Pipe, source: Iterator[Batch]) -> int:
    for step in range(1_000):
        try:
            pipe.progress(source)
        except StopIteration:
            return step
    raise AssertionError("the pipeline never ends")


def flush_in_the_middle(device: torch.device, schedule: str) -> dict[str, list[str]]:
    """After every step: flush, compare with the synchronous run after as many steps, go on."""
    case = Case(steps=6)
    plain, plain_optimizer = build(case, device)
    pipe, model, optimizer = start(case, device, schedule)
    source, found = batches(case, dist.get_rank()), {}
    for step in plain_steps(plain, plain_optimizer, batches(case, dist.get_rank())):
        pipe.progress(source)
        pipe.flush()
        found[f"step {step}"] = differences(state(plain, plain_optimizer), state(model, optimizer))
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_flush_after_any_step_gives_the_synchronous_weights(ranks: RankPool, schedule: str) -> None:
    for found in ranks.run(2, flush_in_the_middle, schedule=schedule):
        assert found == {f"step {step}": [] for step in range(6)}


def evaluate_in_the_middle(device: torch.device, schedule: str) -> dict[str, Any]:
    case = Case(steps=6)
    plain, plain_optimizer = build(case, device)
    pipe, model, optimizer = start(case, device, schedule)
    held_out = next(batches(replace(case, seed=9), dist.get_rank()))
    source, refused, equal = batches(case, dist.get_rank()), 0, []
    for _ in plain_steps(plain, plain_optimizer, batches(case, dist.get_rank())):
        pipe.progress(source)
        model.eval()
        try:
            model(held_out)
        except PendingGradients:
            refused += 1
        with pytest.raises(PipelineError, match="eval mode"):
            pipe.progress(source)
        pipe.flush()
        with torch.no_grad():
            equal.append(torch.equal(model(held_out)[1], plain.eval()(held_out)[1]))
        model.train()
        plain.train()
    return {
        "refused": refused,
        "equal": equal,
        "differences": differences(state(plain, plain_optimizer), state(model, optimizer)),
    }


@pytest.mark.parametrize(("schedule", "refused"), [("sync", 0), ("prioritized", 6)])
def test_evaluation_needs_a_flush_and_consumes_no_batch(ranks: RankPool, schedule: str, refused: int) -> None:
    for found in ranks.run(2, evaluate_in_the_middle, schedule=schedule):
        assert found == {"refused": refused, "equal": [True] * 6, "differences": []}


def change_rates(device: torch.device, schedule: str) -> list[str]:
    case = Case(steps=7)
    plain, plain_optimizer = build(case, device)
    for step in plain_steps(plain, plain_optimizer, batches(case, dist.get_rank())):
        set_rate(plain, step)
    pipe, model, optimizer = start(case, device, schedule)
    source = batches(case, dist.get_rank())
    for step in range(case.steps):
        pipe.progress(source)
        set_rate(model, step)
    pipe.flush()
    return differences(state(plain, plain_optimizer), state(model, optimizer))


def set_rate(model: DistributedModelParallel, step: int) -> None:
    """A schedule that changes the rate after every step, as TorchRec's optimizers hand it on."""
    for group in model.fused_optimizer.param_groups:
        group["lr"] = 0.1 / (step + 2)
    model.fused_optimizer.step()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_deferred_gradient_uses_the_rate_of_its_batch(ranks: RankPool, schedule: str) -> None:
    assert ranks.run(2, change_rates, schedule=schedule) == [[], []]


def run_epochs(device: torch.device, schedule: str) -> dict[str, Any]:
    case = Case(steps=3)
    plain, plain_optimizer = build(case, device)
    pipe, model, optimizer = start(case, device, schedule)
    steps, numbers = [], []
    for epoch in range(3):
        data = replace(case, seed=epoch)
        list(plain_steps(plain, plain_optimizer, batches(data, dist.get_rank())))
        steps.append(drain(pipe, batches(data, dist.get_rank())))
        numbers.append(pipe.report().step)
    return {
        "steps": steps,
        "numbers": numbers,
        "differences": differences(state(plain, plain_optimizer), state(model, optimizer)),
    }


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_several_epochs_over_new_iterators(ranks: RankPool, schedule: str) -> None:
    for found in ranks.run(2, run_epochs, schedule=schedule):
        assert found == {"steps": [3, 3, 3], "numbers": [2, 5, 8], "differences": []}


def run_out(device: torch.device, schedule: str) -> dict[str, Any]:
    """Rank 1 has two batches fewer. What all ranks had must be trained, and nobody may hang."""
    case = Case(steps=6)
    plain, plain_optimizer = build(case, device)
    list(plain_steps(plain, plain_optimizer, islice(batches(case, dist.get_rank()), 4)))
    pipe, model, optimizer = start(case, device, schedule)
    own = 4 if dist.get_rank() == 1 else 6
    with pytest.raises(UnevenData) as raised:
        drain(pipe, islice(batches(case, dist.get_rank()), own))
    return {
        "message": str(raised.value),
        "differences": differences(state(plain, plain_optimizer), state(model, optimizer)),
    }


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_rank_that_runs_out_ends_all_with_an_error(ranks: RankPool, schedule: str) -> None:
    for found in ranks.run(3, run_out, schedule=schedule):
        assert found["message"].startswith("rank(s) [1] ran out of batches before the others after 4 batches")
        assert found["differences"] == []


def report_steps(device: torch.device, schedule: str) -> list[StepReport]:
    case = Case(collections=((Table(40, ("a", "b")), Table(20, ("c",))),), steps=5)
    pipe, _, _ = start(case, device, schedule)
    with pytest.raises(PipelineError, match="no step has finished yet"):
        pipe.report()
    source, reports = batches(case, dist.get_rank()), []
    for _ in range(case.steps):
        pipe.progress(source)
        reports.append(pipe.report())
    return reports


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reports_add_up(ranks: RankPool, schedule: str) -> None:
    parted = schedule == "prioritized"
    for rank, reports in enumerate(ranks.run(2, report_steps, schedule=schedule)):
        assert [(report.step, report.rank, report.samples) for report in reports] == [(n, rank, 6) for n in range(5)]
        for report in reports:
            assert 0 <= report.exposed_ms <= report.comm_ms <= report.step_ms
            assert report.hidden_ms == pytest.approx(report.comm_ms - report.exposed_ms)
            assert report.compute_ms + report.exposed_ms <= report.step_ms
            assert (report.overlapped_ids is None) == (not parted)
        kinds = {(each.name, each.partition) for each in reports[2].collectives}
        both = {Partition.OL, Partition.NOL} if parted else {None}
        assert kinds == {
            (CollectiveName.INPUT_DIST, None),
            (CollectiveName.DENSE_ALLREDUCE, None),
            *((CollectiveName.OVERLAP_MASK, None) for _ in range(parted)),
            *((name, part) for name in (CollectiveName.EMBEDDING, CollectiveName.GRADIENT) for part in both),
        }
        if parted:
            assert reports[0].overlapped_ids == 0
            assert all(report.id_overlap is not None and 0 < report.id_overlap <= 1 for report in reports[1:])


def sent_and_received(device: torch.device) -> dict[str, int]:
    totals: dict[str, int] = {}
    for report in report_steps(device, "prioritized"):
        for each in report.collectives:
            for side in ("bytes_sent", "bytes_received"):
                key = f"{each.name} {each.partition} {side}"
                totals[key] = totals.get(key, 0) + getattr(each, side)
    return totals


def test_what_one_rank_sends_the_other_receives(ranks: RankPool) -> None:
    one, other = ranks.run(2, sent_and_received)
    for key, sent in one.items():
        if key.endswith("bytes_sent"):
            assert sent == other[key.replace("sent", "received")], key
            assert sent > 0, key


def run_without(device: torch.device, consumer: str, need: str) -> str:
    dropped = Need.parse(need)
    stages = tuple(
        replace(each, needs=tuple(other for other in each.needs if other != dropped)) if each.name == consumer else each
        for each in schedules.PRIORITIZED.stages
    )
    try:
        pipe, _, _ = start(Case(steps=3), device, Schedule("dropped", stages))
        drain(pipe, batches(Case(steps=3), dist.get_rank()))
    except (InvalidSchedule, UndeclaredNeed) as error:
        return type(error).__name__
    return "trained"


@pytest.mark.parametrize(
    ("consumer", "need"), [(stage.name, str(need)) for stage in schedules.PRIORITIZED.stages for need in stage.needs]
)
def test_no_need_can_be_dropped(ranks: RankPool, consumer: str, need: str) -> None:
    [outcome] = ranks.run(1, run_without, consumer=consumer, need=need)
    assert outcome in ("InvalidSchedule", "UndeclaredNeed")
