"""What a training needs before its first step: the data, the model, and how many steps there are."""

import torch
import torch.distributed as dist
from torch import nn

from workers.job import InvalidJob, JobSpec
from workers.models import build_model
from workers.sources import open_source
from workers.sources.schema import Source
from workers.training.position import Position


def open_everywhere(job: JobSpec) -> tuple[Source, nn.Module]:
    """Open the data and build the model, and raise `InvalidJob` on every rank if either fails on any of them.

    A file may be missing on one node only; the other ranks would wait for that rank in their first collective.
    """
    opened, problems = None, []
    try:
        source = open_source(job.data)
        torch.manual_seed(job.training.seed)
        opened = source, build_model(job.model, source.schema)
    except InvalidJob as error:
        problems = error.problems
    by_rank: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(by_rank, problems)
    if any(by_rank):
        raise InvalidJob(_name_ranks(by_rank))
    assert opened is not None
    source, model = opened
    _refuse_other_data(job, source)
    if job.evaluation.every_steps is not None and next(source.holdout(dist.get_rank(), len(by_rank), 1), None) is None:
        raise InvalidJob(["evaluation.every_steps: the data holds out no samples to evaluate on; leave it out"])
    return source, model


def _refuse_other_data(job: JobSpec, source: Source) -> None:
    """Raise `InvalidJob` on every rank if the ranks do not see the same data: some would run out before the others."""
    world_size = dist.get_world_size()
    seen = [(source.schema, source.steps(world_size, job.training.batch_size, job.training.epochs))] * world_size
    dist.all_gather_object(seen, seen[dist.get_rank()])
    for rank, (schema, steps) in enumerate(seen):
        if schema != seen[0][0]:
            raise InvalidJob([f"data: rank {rank} sees other features than rank 0; give all nodes the same files"])
        if steps != seen[0][1]:
            raise InvalidJob(
                [f"data: rank {rank} sees {steps} steps of data, rank 0 {seen[0][1]}; give all nodes the same files"]
            )


def planned_steps(job: JobSpec, source: Source, world_size: int, position: Position) -> int:
    """At which step the job ends if this many ranks go on from `position`."""
    training = job.training
    left = source.steps(world_size, training.batch_size, training.epochs, position.consumed)
    steps = position.steps + left
    return steps if training.max_steps is None else min(steps, training.max_steps)


def _name_ranks(by_rank: list[list[str]]) -> list[str]:
    ranks: dict[str, list[int]] = {}
    for rank, problems in enumerate(by_rank):
        for problem in problems:
            ranks.setdefault(problem, []).append(rank)
    everywhere = len(by_rank)
    return [
        problem if len(where) == everywhere else f"{problem} (on rank {', '.join(map(str, where))} only)"
        for problem, where in ranks.items()
    ]
