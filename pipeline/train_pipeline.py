"""The pipeline that a training loop drives: `progress`, `flush`, `report`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from pipeline import schedules
from pipeline.checks import check
from pipeline.dense_allreduce import take_over_dense_allreduce
from pipeline.drawing import draw_violations
from pipeline.errors import InvalidSchedule, PendingGradients, PipelineError, UnevenData
from pipeline.executor import Executor, Running
from pipeline.modules import select
from pipeline.report import StepReport
from pipeline.runtime import for_device
from pipeline.schedule import Schedule
from pipeline.stages import ProcessGroups, stage_functions
from pipeline.stages.batch import Received, samples_of
from pipeline.stages.dense import Result
from pipeline.timeline import StepFacts

In = TypeVar("In")
Out = TypeVar("Out")


class TrainPipeline(Generic[In, Out]):
    """Trains a sharded TorchRec model under a schedule, bit for bit as plain synchronous training would.

    The model's forward takes a batch and returns `(losses, output)`. Every rank builds its pipeline at the same point
    of the program (process groups are created) and calls `progress` and `flush` equally often.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        schedule: str | Schedule = "prioritized",
    ) -> None:
        """Raises `ValueError` for an unknown schedule or device, `InvalidSchedule` for one that fails its checks, and
        `UnsupportedModel` for a model that cannot be trained exactly.
        """
        self._schedule = schedule if isinstance(schedule, Schedule) else schedules.get(schedule)
        violations = check(self._schedule)
        if violations:
            raise InvalidSchedule(draw_violations(self._schedule, violations))
        self._model = model
        self._selection = select(model, self._before_own_forward)
        modules = self._selection.prioritized
        for module in modules:
            module.sharded.register_state_dict_pre_hook(self._before_state_dict)
            module.sharded.register_load_state_dict_pre_hook(self._before_load_state_dict)
        group = self._selection.process_group
        ranks = dist.get_process_group_ranks(group)
        # A group of its own would otherwise wait 30 minutes for a rank that is gone, whatever the user has set.
        timeout = group._get_backend(device).options._timeout
        self._runtime = for_device(device, dist.get_rank())
        self._source: Iterator[In] | None = None
        self._first_step = 0
        self._end_announced = False
        self._attached = True
        self._tables_changed = False
        self._failure: BaseException | None = None
        self._functions = stage_functions(
            self._schedule,
            model,
            optimizer,
            device,
            modules,
            ProcessGroups(dist.new_group(ranks, timeout=timeout), dist.new_group(ranks, timeout=timeout)),
            self._runtime,
            take_over_dense_allreduce(model, self._runtime),
            self._next_batch,
            self._poll,
        )
        self._executor = self._new_executor()

    @property
    def prioritized(self) -> dict[str, str]:
        """The modules whose AllToAlls the pipeline starts, by name, with how they are sharded."""
        return {module.name: module.fact for module in self._selection.prioritized}

    @property
    def not_prioritized(self) -> dict[str, str]:
        """The sharded modules that keep TorchRec's own forward, by name, with the reason."""
        return dict(self._selection.rejected)

    @property
    def running(self) -> Running | None:
        """The stage at work and its batch, counted from the start of this pipeline; None in between. For other threads,
        and after a failure, to say where it happened.
        """
        running = self._executor.running
        return running and Running(running.stage, self._first_step + running.batch)

    def progress(self, batches: Iterator[In]) -> Out:
        """Train one batch and return the model's output for it.

        Raises `StopIteration` when the data of all ranks is exhausted and every gradient is applied, and `UnevenData`
        when only some ranks have run out.
        """
        self._refuse_after_failure()
        if not self._model.training:
            raise PipelineError("progress() trains, but the model is in eval mode; to evaluate, flush() and call it")
        if not self._attached:
            self.attach()
        if self._end_announced:
            self._first_step += self._executor.batches or 0
            self._executor, self._end_announced = self._new_executor(), False
        self._source = batches
        with self._failing_for_good():
            self._runtime.timeline.begin_step()
            executor = self._executor
            if self._tables_changed:
                executor.look_up_again()
                self._tables_changed = False
            while not executor.finished:
                batch = executor.run_step()
                if batch >= 0 and (executor.batches is None or batch < executor.batches):
                    self._runtime.timeline.end_step(self._facts(batch))
                    result: Result = executor.value("forward", batch)
                    output: Out = result.output
                    return output
        self._end_announced = True
        if executor.missing_ranks:
            raise UnevenData(
                f"rank(s) {executor.missing_ranks} ran out of batches before the others after "
                f"{executor.batches} batches; give all ranks equally many"
            )
        raise StopIteration

    def flush(self) -> None:
        """Apply every gradient that is still deferred. Afterwards weights and optimizer state equal those of the
        synchronous run after the same number of batches. Training goes on as if nothing had happened.
        """
        self._refuse_after_failure()
        with self._failing_for_good():
            self._executor.flush()

    def report(self) -> StepReport:
        """The figures of the last finished step; on CUDA it may lag behind `progress`, which does not wait for the
        device. Waits for the first step, and raises `PipelineError` before there is one.
        """
        timeline = self._runtime.timeline
        report = timeline.last()
        if report is None:
            timeline.finish()
            report = timeline.last()
        if report is None:
            raise PipelineError("no step has finished yet")
        return report

    def reports(self, *, wait: bool = False) -> list[StepReport]:
        """Every step that has finished since the last call, once each and in order. With `wait`, all steps so far."""
        if wait:
            self._runtime.timeline.finish()
        return self._runtime.timeline.unread()

    def detach(self) -> nn.Module:
        """Flush, and give every module its own forward back. Returns the model.

        Batches that the pipeline has already taken are kept for after `attach`.
        """
        self.flush()
        self._selection.release()
        self._attached = False
        return self._model

    def attach(self) -> None:
        """Take over again after `detach`; the model may have been trained in between. `progress` does it by itself."""
        self._selection.install()
        self._attached, self._tables_changed = True, True

    def _new_executor(self) -> Executor:
        return Executor(self._schedule, self._functions, self._runtime)

    def _next_batch(self) -> In | None:
        assert self._source is not None
        return next(self._source, None)

    def _poll(self) -> bool:
        return self._executor.poll()

    def _facts(self, batch: int) -> StepFacts:
        received: Received = self._executor.value("receive", batch)
        overlapped = self._executor.value("partition", batch).overlapped_ids if self._looks_for_overlap else None
        samples = received.samples or samples_of(self._executor.value("copy_batch", batch).batch)
        return StepFacts(self._first_step + batch, samples, received.ids, overlapped)

    @property
    def _looks_for_overlap(self) -> bool:
        return any(stage.name == "partition" for stage in self._schedule.stages)

    @contextmanager
    def _failing_for_good(self) -> Iterator[None]:
        """A step that breaks off in the middle cannot be repeated, and later steps must not build on it."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise PipelineError(
                "an earlier step failed and left the pipeline in the middle of its work; build the model and the "
                "pipeline anew, from a checkpoint"
            ) from self._failure

    def _before_own_forward(self, name: str) -> None:
        self._refuse_with_pending_gradients(f"{name} was called outside progress()")

    def _before_state_dict(self, *_: object) -> None:
        self._refuse_with_pending_gradients("state_dict() was called")

    def _before_load_state_dict(self, *_: object) -> None:
        self._refuse_with_pending_gradients("load_state_dict() was called")
        self._tables_changed = True

    def _refuse_with_pending_gradients(self, event: str) -> None:
        if self._attached and self._executor.pending:
            raise PendingGradients(f"{event} with gradients still deferred; flush() first")
