"""The training loop of one rank. It knows torch.distributed and the pipeline, but no Ray."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import torch
import torch.distributed as dist
from torchrec.datasets.utils import Batch

from pipeline import TrainPipeline
from workers.batches import BatchFeed
from workers.evaluate import held_out_metrics
from workers.job import JobSpec
from workers.models import LossLogitsLabels, build_model
from workers.reports import JobPlan, StepSample
from workers.sharded import ShardedModel, shard
from workers.sources import open_source
from workers.sources.schema import Samples, Source
from workers.telemetry import Telemetry


@dataclass(frozen=True)
class Trained:
    """What a rank has when training is over: the model, and figures that are equal on all ranks."""

    model: ShardedModel
    steps: int
    samples: int
    seconds: float
    loss: float | None
    metrics: dict[str, float | None]


def train(job: JobSpec, device: torch.device, telemetry: Telemetry, attempt: int) -> Trained:
    """Train `job` on this rank of the default process group, flush, and evaluate.

    Raises `InvalidJob` for what only the data or the model can tell, and `pipeline.UnsupportedModel`, before a step.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    source = open_source(job.data)
    torch.manual_seed(job.training.seed)
    sharded = shard(build_model(job.model, source.schema), job.training, device)
    pipe: TrainPipeline[Batch, LossLogitsLabels] = TrainPipeline(
        sharded.module, sharded.dense_optimizer, device, schedule=job.training.schedule.value
    )
    steps = planned_steps(job, source, world_size)
    if rank == 0:
        telemetry.announce(
            JobPlan(
                steps=steps,
                world_size=world_size,
                prioritized=dict(pipe.prioritized),
                not_prioritized=dict(pipe.not_prioritized),
            )
        )
    start = time.perf_counter()
    samples, loss = 0, 0.0
    batches = BatchFeed(_batches(job, source, steps), source.schema, pinned=device.type == "cuda")
    while True:
        try:
            output = pipe.progress(batches)
        except StopIteration:
            break
        report = pipe.report()
        loss = float(output[0])
        samples += report.samples
        telemetry.record(
            StepSample(
                **dict(report),
                time=datetime.now(UTC),
                loss=_finite(loss),
                data_wait_ms=batches.take_wait_ms(),
                attempt=attempt,
            )
        )
    pipe.flush()
    seconds = time.perf_counter() - start
    all_samples, all_losses = _sum_over_ranks(samples, loss, device=device)
    metrics = held_out_metrics(sharded.module, source, job.training.batch_size, device)
    return Trained(sharded, steps, int(all_samples), seconds, _finite(all_losses / world_size), metrics)


def planned_steps(job: JobSpec, source: Source, world_size: int) -> int:
    """How many steps the job takes with this many ranks."""
    steps = source.steps(world_size, job.training.batch_size, job.training.epochs)
    return steps if job.training.max_steps is None else min(steps, job.training.max_steps)


def _batches(job: JobSpec, source: Source, steps: int) -> Iterator[Samples]:
    training = job.training
    everything = source.train_batches(
        dist.get_rank(), dist.get_world_size(), training.batch_size, training.epochs, training.seed, start=0
    )
    for _, samples in zip(range(steps), everything, strict=False):
        yield samples


def _sum_over_ranks(*values: float, device: torch.device) -> list[float]:
    # MPS and some accelerators lack float64; every device that NCCL and gloo serve has it.
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    summed: list[float] = total.tolist()
    return summed


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
