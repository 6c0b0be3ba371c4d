"""The training that every wrong number must show in: rates that change, flushes, weights loaded in the middle."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.distributed as dist
from torchrec.distributed.model_parallel import DistributedModelParallel

from pipeline import TrainPipeline
from pipeline.errors import PipelineError
from pipeline.tables import table_batches
from tests.integration.pipeline.reference import Batch, Case, batches, build, differences, state

CASE = Case(steps=7, seed=3)
COMPARED_AFTER = (2, 4)
LOADED_AFTER = 4
# A flush between a new learning rate and the step that uses it.
FLUSHED_LATE_AFTER = 3


@dataclass(frozen=True)
class Course:
    """What came out: the output of every step, and all numbers after every flush and at the end."""

    outputs: list[torch.Tensor]
    states: list[dict[str, torch.Tensor]]

    def differs_from(self, other: "Course") -> list[str]:
        found = [
            f"output of step {step}"
            for step, pair in enumerate(zip(self.outputs, other.outputs, strict=True))
            if not torch.equal(*pair)
        ]
        for place, (one, another) in enumerate(zip(self.states, other.states, strict=True)):
            only_in_one = one.keys() ^ another.keys()
            found.extend(f"state {place}: {name}" for name in only_in_one or differences(one, another))
        return found


def wrong_numbers(
    device: torch.device, schedule: str, mutate: Callable[[], AbstractContextManager[object]]
) -> list[str]:
    """What differs from plain training when the pipeline runs under a mutation; the error if it does not get through.

    The mutation is in force while the pipeline runs, and not while the plain model does. An error that no fault in
    numbers explains (TypeError, say) is a broken mutation, and is raised.
    """
    expected = _plain(device, dist.get_world_size(), dist.get_rank())
    try:
        with mutate():
            found = _pipelined(device, schedule)
    except (AssertionError, IndexError, RuntimeError, PipelineError) as error:
        return [f"{type(error).__name__}: {error}"]
    return found.differs_from(expected)


@cache
def _plain(device: torch.device, world_size: int, rank: int) -> Course:
    model, optimizer = build(CASE, device)
    course = Course([], [])
    for step, batch in enumerate(batches(CASE, rank)):
        optimizer.zero_grad()
        loss, output = model(batch)
        loss.backward()
        optimizer.step()
        _after_step(course, step, output, model, optimizer)
    course.states.append(_numbers(model, optimizer))
    return course


def _pipelined(device: torch.device, schedule: str) -> Course:
    model, optimizer = build(CASE, device)
    pipe: TrainPipeline[Batch, torch.Tensor] = TrainPipeline(model, optimizer, device, schedule=schedule)
    course, source = Course([], []), batches(CASE, dist.get_rank())
    for step in range(CASE.steps):
        output = pipe.progress(source)
        if step in COMPARED_AFTER:
            pipe.flush()
        _after_step(course, step, output, model, optimizer)
        if step == FLUSHED_LATE_AFTER:
            pipe.flush()
    pipe.flush()
    course.states.append(_numbers(model, optimizer))
    return course


def _after_step(
    course: Course,
    step: int,
    output: torch.Tensor,
    model: DistributedModelParallel,
    optimizer: torch.optim.Optimizer,
) -> None:
    course.outputs.append(output.clone())
    if step in COMPARED_AFTER:
        course.states.append(_numbers(model, optimizer))
    if step == LOADED_AFTER:
        # Other weights: whatever was looked up ahead of time is out of date now.
        other, _ = build(replace(CASE, seed=CASE.seed + 1), torch.device("cpu"))
        model.load_state_dict(other.state_dict())
    if step % 2:
        for group in model.fused_optimizer.param_groups:
            group["lr"] = 0.1 / (step + 2)
        model.fused_optimizer.step()


def _numbers(model: DistributedModelParallel, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Weights and optimizer states, and how many iterations the fused optimizers have counted."""
    lookups = [lookup for module in model.modules() for lookup in getattr(module, "_lookups", ())]
    tables = [table for lookup in lookups for table in table_batches(lookup)]
    assert tables, "no fused table found"
    counted = {f"iteration/{place}": table.iter.clone() for place, table in enumerate(tables)}
    return state(model, optimizer) | counted
