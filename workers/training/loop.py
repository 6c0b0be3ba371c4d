"""The training loop of one rank. It knows torch.distributed and the pipeline, but neither Ray nor the control plane."""

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torchrec.datasets.utils import Batch

from pipeline import StepReport, TrainPipeline
from workers.job import InvalidJob, JobSpec
from workers.models import LossLogitsLabels, build_model
from workers.reports import JobPlan, StepSample
from workers.sources import open_source
from workers.sources.schema import Samples, Source
from workers.telemetry.beat import Beat
from workers.telemetry.sender import Telemetry
from workers.training.batches import BatchFeed
from workers.training.checkpoint import Checkpoints
from workers.training.evaluate import held_out_metrics
from workers.training.sharded import shard

Pipeline = TrainPipeline[Batch, LossLogitsLabels]

# Several times for each time that the sender empties its queue, so that no single step is held up for long.
TELL_EVERY_S = 0.5


@dataclass(frozen=True)
class Trained:
    """Figures of a finished training, equal on all ranks. `steps` counts all attempts, the others only the last one."""

    steps: int
    samples: int
    seconds: float
    loss: float | None
    metrics: dict[str, float | None]


def train(job: JobSpec, device: torch.device, telemetry: Telemetry, checkpoints: Checkpoints, attempt: int) -> Trained:
    """Train `job` on this rank of the default process group, from the last checkpoint to the end.

    Ends with the pipeline flushed, the model evaluated and saved.

    Raises `InvalidJob` for what only the data or the model can tell, and `pipeline.UnsupportedModel`, before a step.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    source, unsharded = _open_everywhere(job)
    steps = planned_steps(job, source, world_size)
    model = shard(unsharded, job.training, device)
    first = checkpoints.restore(model)
    pipe: Pipeline = TrainPipeline(model.module, model.dense_optimizer, device, schedule=job.training.schedule.value)
    if rank == 0:
        telemetry.announce(_plan(pipe, steps, world_size))
    batches = BatchFeed(_samples(job, source, first, steps), source.schema, pinned=device.type == "cuda")
    start = time.perf_counter()
    progress = Progress(pipe, telemetry, first, attempt)
    try:
        for step, output in enumerate(_outputs(pipe, batches), start=first):
            progress.add(output[0], batches.take_wait_ms())
            if _is_due(job, step + 1, steps):
                pipe.flush()
                checkpoints.save(model, step + 1, {})
        pipe.flush()
    finally:
        # Also of a run that breaks off, the steps that were done are told.
        progress.tell()
    progress.tell(wait=True)
    seconds = time.perf_counter() - start
    all_samples, all_losses = _sum_over_ranks(progress.samples, progress.loss, device=device)
    metrics = held_out_metrics(model.module, source, job.training.batch_size, device)
    trained = Trained(steps, int(all_samples), seconds, _finite(all_losses / world_size), metrics)
    checkpoints.save(model, steps, {"loss": trained.loss, **metrics})
    return trained


def _open_everywhere(job: JobSpec) -> tuple[Source, nn.Module]:
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
    return opened


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


def planned_steps(job: JobSpec, source: Source, world_size: int) -> int:
    """How many steps the job takes with this many ranks."""
    steps = source.steps(world_size, job.training.batch_size, job.training.epochs)
    return steps if job.training.max_steps is None else min(steps, job.training.max_steps)


def _plan(pipe: Pipeline, steps: int, world_size: int) -> JobPlan:
    return JobPlan(
        steps=steps,
        world_size=world_size,
        prioritized=dict(pipe.prioritized),
        not_prioritized=dict(pipe.not_prioritized),
    )


def _samples(job: JobSpec, source: Source, first: int, steps: int) -> Iterator[Samples]:
    training = job.training
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = source.train_batches(rank, world_size, training.batch_size, training.epochs, training.seed, first)
    return islice(batches, steps - first)


def _outputs(pipe: Pipeline, batches: BatchFeed) -> Iterator[LossLogitsLabels]:
    while True:
        try:
            output = pipe.progress(batches)
        except StopIteration:
            return
        yield output


class Progress:
    """Puts together what the loop and the pipeline know about each step, and hands it to the telemetry.

    Reports are worked out many at a time and on all ranks in the same step, which costs the run far less than one after
    each step. On CUDA a step is reported when the device has done it: so the loss is copied without waiting, and read
    when the report is there.
    """

    def __init__(self, pipe: Pipeline, telemetry: Telemetry, first: int, attempt: int) -> None:
        self._pipe, self._telemetry, self._first, self._attempt = pipe, telemetry, first, attempt
        self._unreported: deque[_Issued] = deque()
        self._beat = Beat(TELL_EVERY_S)
        self.samples, self.loss = 0, math.nan

    def add(self, loss: torch.Tensor, data_wait_ms: float) -> None:
        """The host has issued another step. Hands on what is due to be told."""
        self._unreported.append(_Issued(loss.detach().to("cpu", non_blocking=True), data_wait_ms, datetime.now(UTC)))
        if self._beat.passed():
            self.tell()

    def tell(self, *, wait: bool = False) -> None:
        """Hand on every step that was reported since the last call; with `wait`, every step so far."""
        for report in self._pipe.reports(wait=wait):
            issued = self._unreported.popleft()
            self.loss = float(issued.loss)
            self.samples += report.samples
            self._telemetry.record(self._sample(report, issued))

    def _sample(self, report: StepReport, issued: "_Issued") -> StepSample:
        """Steps count from the start of the job, while the pipeline counts from the start of the attempt."""
        # `vars` and one dict: going through the report's fields one by one takes five times as long.
        return StepSample.model_validate(
            {
                **vars(report),
                "step": self._first + report.step,
                "time": issued.at,
                "loss": _finite(self.loss),
                "data_wait_ms": issued.data_wait_ms,
                "attempt": self._attempt,
            }
        )


@dataclass(frozen=True)
class _Issued:
    """What the loop knows of a step before the pipeline has reported it."""

    loss: torch.Tensor
    data_wait_ms: float
    at: datetime


def _is_due(job: JobSpec, done: int, steps: int) -> bool:
    every = job.checkpoint.every_steps
    return every is not None and done % every == 0 and done < steps


def _sum_over_ranks(*values: float, device: torch.device) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    summed: list[float] = total.tolist()
    return summed


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
