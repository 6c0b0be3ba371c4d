"""The training loop of one rank. It knows torch.distributed and the pipeline, but neither Ray nor the control plane."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import structlog
import torch
import torch.distributed as dist
from torch import nn

from pipeline import TrainPipeline
from pipeline.errors import UnevenData
from workers.job import InvalidJob, JobSpec
from workers.models import LossLogitsLabels, build_model
from workers.reports import JobPlan
from workers.sources import open_source
from workers.sources.schema import Samples, Source
from workers.telemetry.sender import Telemetry
from workers.training.batches import BatchFeed
from workers.training.checkpoint import Checkpoints
from workers.training.ending import any_of_all_ranks, refuse_diverged, refuse_failed_data
from workers.training.evaluate import held_out_metrics
from workers.training.position import Position
from workers.training.progress import Pipeline, Progress, finite
from workers.training.read_ahead import ReadAhead
from workers.training.sharded import ShardedModel, shard

log = structlog.get_logger(__name__)


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
    Raises `DivergedError` when a loss is not finite, and `DataFailedError` or `EndedByPeerError` when data cannot be
    read; with the latter two, everything before is saved.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    source, unsharded = _open_everywhere(job)
    steps = planned_steps(job, source, world_size)
    if job.evaluation.every_steps is not None and next(source.holdout(rank, world_size, 1), None) is None:
        raise InvalidJob(["evaluation.every_steps: the data holds out no samples to evaluate on; leave it out"])
    model = shard(unsharded, job.training, device, job.model.sharding)
    position = checkpoints.restore(model)
    pipe: Pipeline = TrainPipeline(model.module, model.dense_optimizer, device, schedule=job.training.schedule.value)
    if rank == 0:
        telemetry.announce(_plan(pipe, model, steps, world_size))
    start = time.perf_counter()
    progress = Progress(pipe, telemetry, position.steps, attempt)
    run = _Run(job, source, model, pipe, progress, checkpoints, steps, device)
    try:
        position = run.go(position)
    finally:
        # Also of a run that breaks off, the steps that were done are told.
        progress.tell()
    seconds = time.perf_counter() - start
    all_samples, all_losses = _sum_over_ranks(progress.samples, progress.loss, device=device)
    metrics = held_out_metrics(model.module, source, job.training.batch_size, device)
    trained = Trained(position.steps, int(all_samples), seconds, finite(all_losses / world_size), metrics)
    checkpoints.save(model, position, {"loss": trained.loss, **metrics})
    return trained


@dataclass(frozen=True)
class _Run:
    """The steps of one attempt, with what happens between them."""

    job: JobSpec
    source: Source
    model: ShardedModel
    pipe: Pipeline
    progress: Progress
    checkpoints: Checkpoints
    steps: int
    device: torch.device

    def go(self, position: Position) -> Position:
        """Train from `position` to the end, with the pipeline flushed there. Raises as `train` does."""
        first = position.steps
        with ReadAhead(_samples(self.job, self.source, position, self.steps)) as samples:
            batches = BatchFeed(samples, self.source.schema, pinned=self.device.type == "cuda")
            for output in _outputs(self.pipe, batches):
                self.progress.add(output[0], batches.take_wait_ms())
                position = position.at(position.steps + 1)
                if self.progress.diverged_at is not None:
                    batches.end()
                evaluates = _is_due(self.job.evaluation.every_steps, position, self.steps)
                saves = _is_due(self.job.checkpoint.every_steps, position, self.steps)
                if evaluates or saves:
                    self._settle()
                if evaluates:
                    position = self._evaluate(position)
                    if position.is_final(self.job.evaluation.early_stopping):
                        break
                if saves:
                    self.checkpoints.save(self.model, position, {})
        self._settle()
        if position.steps > first and any_of_all_ranks(batches.failure is not None):
            self.checkpoints.save(self.model, position, {})
        refuse_failed_data(batches.failure)
        return position

    def _settle(self) -> None:
        """Apply every gradient, and refuse to go on from weights that a loss which is not finite has spoilt."""
        self.pipe.flush()
        self.progress.tell(wait=True)
        refuse_diverged(self.progress.diverged_at, self._keep_batch)

    def _evaluate(self, position: Position) -> Position:
        """Measure the model in the middle of its training. All ranks come to the same end."""
        metrics = held_out_metrics(self.model.module, self.source, self.job.training.batch_size, self.device)
        stopping = self.job.evaluation.early_stopping
        if stopping is not None:
            position = position.evaluated(stopping, metrics)
        if dist.get_rank() == 0:
            log.info("evaluated", step=position.steps, **metrics)
            if position.is_final(stopping):
                log.info("early stopping", step=position.steps, best=position.best, evaluations_since=position.stale)
        return position

    def _keep_batch(self, step: int) -> str:
        samples = next(_samples(self.job, self.source, Position(step), self.steps))
        return self.checkpoints.keep_batch(samples, f"not-finite-step-{step:08d}-rank-{dist.get_rank()}")


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


def _plan(pipe: Pipeline, model: ShardedModel, steps: int, world_size: int) -> JobPlan:
    return JobPlan(
        steps=steps,
        world_size=world_size,
        prioritized=dict(pipe.prioritized),
        not_prioritized=dict(pipe.not_prioritized),
        sharding=model.tables,
    )


def _samples(job: JobSpec, source: Source, position: Position, steps: int) -> Iterator[Samples]:
    """What is left to train: nothing after early stopping."""
    training, first = job.training, position.steps
    if position.is_final(job.evaluation.early_stopping):
        return iter(())
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = source.train_batches(rank, world_size, training.batch_size, training.epochs, training.seed, first)
    return islice(batches, steps - first)


def _outputs(pipe: Pipeline, batches: BatchFeed) -> Iterator[LossLogitsLabels]:
    """One for each step, up to the last batch that all ranks had."""
    while True:
        try:
            output = pipe.progress(batches)
        except StopIteration:
            return
        except UnevenData:
            if not any_of_all_ranks(batches.ended):
                raise
            return
        yield output


def _is_due(every_steps: int | None, position: Position, steps: int) -> bool:
    """The end of the run is left out: it has an evaluation and a checkpoint of its own."""
    return every_steps is not None and position.steps % every_steps == 0 and position.steps < steps


def _sum_over_ranks(*values: float, device: torch.device) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    summed: list[float] = total.tolist()
    return summed
