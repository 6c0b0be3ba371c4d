"""The training loop of one rank. It knows torch.distributed and the pipeline, but neither Ray nor the control plane."""

import time
from collections.abc import Set
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pipeline import TrainPipeline
from workers.job import JobSpec
from workers.reports import JobPlan
from workers.sources.bad_rows import BadRows
from workers.telemetry.sender import Telemetry
from workers.training.checkpoint import Checkpoints
from workers.training.opening import open_everywhere, planned_steps
from workers.training.progress import Pipeline, Progress, finite
from workers.training.sharded import ShardedModel, shard
from workers.training.stretch import Run
from workers.training.watchdog import Watchdog


@dataclass(frozen=True)
class Trained:
    """Figures of a finished training, equal on all ranks. `steps` counts all attempts, the others only the last one.

    `bad_rows` are those that the ranks left out; None where the source does not count them.
    """

    steps: int
    samples: int
    seconds: float
    loss: float | None
    metrics: dict[str, float | None]
    bad_rows: int | None = None


def train(
    job: JobSpec,
    device: torch.device,
    telemetry: Telemetry,
    checkpoints: Checkpoints,
    watchdog: Watchdog,
    attempt: int,
    skipped: Set[int] = frozenset(),
) -> Trained:
    """Train `job` on this rank of the default process group, from the last checkpoint to the end.

    The steps `skipped` are left out. Ends with the pipeline flushed, the model evaluated and saved.

    Raises `InvalidJob` for what only the data or the model can tell, and `pipeline.UnsupportedModel`, before a step.
    Raises `DivergedError` when a loss is not finite, `UnusableDataError` when rows cannot be trained, and
    `DataFailedError` or `EndedByPeerError` when data cannot be read. What was trained before the data failed is saved.
    Raises `StoppedError` when the job is told to stop, after what was trained is saved.
    """
    watchdog.enter("opening the data and the model")
    source, unsharded = open_everywhere(job)
    model = shard(unsharded, job.training, device, job.model.sharding)
    watchdog.enter("restoring the checkpoint")
    position = checkpoints.restore(model)
    steps = planned_steps(job, source, dist.get_world_size(), position)
    pipe: Pipeline = TrainPipeline(model.module, model.dense_optimizer, device, schedule=job.training.schedule.value)
    watchdog.follow(pipe, position.steps)
    if dist.get_rank() == 0:
        telemetry.announce(_plan(pipe, model, steps, attempt))
    start = time.perf_counter()
    progress = Progress(pipe, telemetry, attempt)
    run = Run(job, source, model, pipe, progress, telemetry, checkpoints, watchdog, steps, skipped, device)
    try:
        position = run.go(position)
    finally:
        # Also of a run that breaks off, the steps that were done are told.
        progress.tell()
    seconds = time.perf_counter() - start
    metrics = run.evaluate()
    bad_rows = source.bad_rows if isinstance(source, BadRows) else None
    samples, losses, bad = _sum_over_ranks(progress.samples, progress.loss, bad_rows or 0, device=device)
    loss = finite(losses / dist.get_world_size())
    run.save(position, {"loss": loss, **metrics})
    checkpoints.finish()
    return Trained(position.steps, int(samples), seconds, loss, metrics, None if bad_rows is None else int(bad))


def _plan(pipe: Pipeline, model: ShardedModel, steps: int, attempt: int) -> JobPlan:
    return JobPlan(
        steps=steps,
        world_size=dist.get_world_size(),
        prioritized=dict(pipe.prioritized),
        not_prioritized=dict(pipe.not_prioritized),
        sharding=model.tables,
        attempt=attempt,
    )


def _sum_over_ranks(*values: float, device: torch.device) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    summed: list[float] = total.tolist()
    return summed
