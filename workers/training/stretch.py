"""The steps of one attempt, with the evaluations and checkpoints between them.

An attempt is one stretch of steps, or several: a notice that a node is about to go ends a stretch, so that all ranks
can save at the same step. So does whoever tells the job to stop.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import islice

import structlog
import torch
import torch.distributed as dist

from pipeline.errors import UnevenData
from workers.job import JobSpec
from workers.models import LossLogitsLabels
from workers.sources.schema import Samples, Source
from workers.telemetry.sender import Telemetry
from workers.training.batches import BatchFeed
from workers.training.checkpoint import Checkpoints
from workers.training.ending import (
    Cause,
    StoppedError,
    any_of_all_ranks,
    refuse_diverged,
    refuse_failed_data,
    strongest_of_all_ranks,
)
from workers.training.evaluate import held_out_metrics
from workers.training.position import Position
from workers.training.progress import Pipeline, Progress
from workers.training.read_ahead import ReadAhead
from workers.training.sharded import ShardedModel
from workers.training.watchdog import Watchdog

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Run:
    """One attempt on this rank. Every rank makes every call."""

    job: JobSpec
    source: Source
    model: ShardedModel
    pipe: Pipeline
    progress: Progress
    telemetry: Telemetry
    checkpoints: Checkpoints
    watchdog: Watchdog
    steps: int
    skipped: Set[int]
    device: torch.device

    def go(self, position: Position) -> Position:
        """Train from `position` to the end, with the pipeline flushed there. Raises as `loop.train` does."""
        while True:
            position, cause = self._stretch(position)
            if cause is Cause.DATA:
                return position
            # Whatever comes after this checkpoint may be lost with the node, so it has to be there first.
            self.save(position, {})
            self.checkpoints.finish()
            if cause is Cause.STOP:
                raise StoppedError(position.steps)
            log.info("saved ahead of a preemption", step=position.steps)

    def evaluate(self) -> dict[str, float | None]:
        """What the model is worth on the held-out samples. The pipeline must be flushed."""
        self.watchdog.enter("evaluation")
        batch_size = self.job.training.batch_size
        return held_out_metrics(self.model.module, self.source, batch_size, self.device, self.watchdog.beat)

    def save(self, position: Position, figures: dict[str, float | None]) -> None:
        """Start to write a checkpoint. The pipeline must be flushed."""
        self.watchdog.enter("checkpoint")
        self.checkpoints.save(self.model, position, figures)

    def _stretch(self, start: Position) -> tuple[Position, Cause]:
        """Train until something ends the stretch. Says where that is, and what it was, the same on every rank."""
        position, cause = start, Cause.DATA
        with ReadAhead(self._samples(start)) as samples:
            batches = BatchFeed(
                samples,
                self.source.schema,
                first=start.steps,
                skipped=self.skipped,
                pinned=self.device.type == "cuda",
            )
            for output in _outputs(self.pipe, batches):
                self.watchdog.enter("training")
                before, position = position, self._trained(position, batches.trained())
                self.progress.add(position.steps - 1, output[0], batches.take_wait_ms())
                cause = max(cause, self._interruption())
                if cause is not Cause.DATA or self.progress.diverged_at is not None:
                    batches.end()
                position, final = self._between_steps(start, before, position)
                if final:
                    break
        self._settle(start)
        if position.steps > start.steps and any_of_all_ranks(batches.failure is not None):
            self.save(position, {})
            self.checkpoints.finish()
        refuse_failed_data(batches.failure)
        return position, strongest_of_all_ranks(cause)

    def _interruption(self) -> Cause:
        """What this rank has just heard of."""
        if self.telemetry.told_to_stop:
            return Cause.STOP
        return Cause.NOTICE if self.checkpoints.urgent else Cause.DATA

    def _between_steps(self, start: Position, before: Position, position: Position) -> tuple[Position, bool]:
        """Evaluate and save, where it is time to. Says whether the training ends here."""
        evaluates = self._is_due(self.job.evaluation.every_steps, before, position)
        saves = self._is_due(self.job.checkpoint.every_steps, before, position)
        if evaluates or saves:
            self._settle(start)
        if evaluates:
            position = self._evaluated(position)
            if position.is_final(self.job.evaluation.early_stopping):
                return position, True
        if saves:
            self.save(position, {})
        return position, False

    def _settle(self, start: Position) -> None:
        """Apply every gradient, and refuse to go on from weights that a loss which is not finite has spoilt."""
        self.pipe.flush()
        self.progress.tell(wait=True)
        refuse_diverged(self.progress.diverged_at, lambda step: self._keep_batch(self._trained(start, step - 1)))

    def _evaluated(self, position: Position) -> Position:
        """Measure the model in the middle of its training. All ranks come to the same end."""
        metrics = self.evaluate()
        stopping = self.job.evaluation.early_stopping
        if stopping is not None:
            position = position.evaluated(stopping, metrics)
        if dist.get_rank() == 0:
            log.info("evaluated", step=position.steps, **metrics)
            if position.is_final(stopping):
                log.info("early stopping", step=position.steps, best=position.best, evaluations_since=position.stale)
        return position

    def _trained(self, position: Position, step: int) -> Position:
        """When `step` is trained, too."""
        return position.at(step + 1, dist.get_world_size() * self.job.training.batch_size)

    def _samples(self, position: Position) -> Iterator[Samples]:
        """What is left to train: nothing after early stopping."""
        training = self.job.training
        if position.is_final(self.job.evaluation.early_stopping):
            return iter(())
        rank, world_size = dist.get_rank(), dist.get_world_size()
        batches = self.source.train_batches(
            rank, world_size, training.batch_size, training.epochs, training.seed, position.consumed
        )
        return islice(batches, self.steps - position.steps)

    def _keep_batch(self, position: Position) -> str:
        samples = next(self._samples(position))
        name = f"not-finite-step-{position.steps:08d}-rank-{dist.get_rank()}"
        return self.checkpoints.keep_batch(samples, name)

    def _is_due(self, every_steps: int | None, before: Position, position: Position) -> bool:
        """The end of the run is left out: it has an evaluation and a checkpoint of its own."""
        if every_steps is None or position.steps >= self.steps:
            return False
        return position.steps // every_steps > before.steps // every_steps


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
