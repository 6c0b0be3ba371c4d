"""What Ray Train runs on every worker. Light to import: the driver hands it over by reference and needs no TorchRec."""

import logging
import traceback
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from workers.job import InvalidJob, JobSpec
from workers.memory import keep_freed_memory
from workers.reports import JobFailure, JobResult, JobStop

if TYPE_CHECKING:
    import torch

    from workers.telemetry.monitor import MonitorLink
    from workers.training.loop import Trained
    from workers.training.watchdog import HungError, Watchdog

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What a rank returns to the driver: a result, a failure that no retry can cure, or how it was stopped."""

    result: JobResult | None = None
    failure: JobFailure | None = None
    stop: JobStop | None = None


def collective_timeout(job: JobSpec) -> timedelta:
    """How long a rank waits for the others: longer than any of them may hang, so that the one that does is named."""
    limit_s = job.workers.hang_timeout_s
    return timedelta(seconds=limit_s + max(5.0, limit_s / 4))


def run_rank(config: dict[str, str]) -> Outcome:
    """Train on this worker. `config` holds the `job` (a JobSpec as JSON) and its `job_id`.

    What is wrong with the job itself comes back as a failure, the same on every rank. Anything else is raised as a
    `RankError`, and Ray starts the worker group again as often as the job's `retries` allow.
    """
    import ray.train
    import ray.util

    from pipeline import UnsupportedModel
    from workers.failures import RankError
    from workers.training.ending import DivergedError, StoppedError, UnusableDataError
    from workers.training.watchdog import Watchdog

    job = JobSpec.model_validate_json(config["job"])
    rank, node = ray.train.get_context().get_world_rank(), ray.util.get_node_ip_address()

    def tell(hung: "HungError", where: str) -> None:
        _fail_from_outside(RankError.of(hung, rank, node, where, hung.stack))

    with Watchdog(job.workers.hang_timeout_s, tell) as watchdog:
        try:
            return Outcome(result=_train(job, config["job_id"], rank, watchdog))
        except StoppedError as stopped:
            return Outcome(stop=JobStop(saved_at_step=stopped.steps))
        except (InvalidJob, UnsupportedModel, DivergedError, UnusableDataError) as error:
            return Outcome(failure=JobFailure(message=f"{error}", traceback=traceback.format_exc()))
        except Exception as error:
            raise RankError.of(error, rank, node, watchdog.where) from error


def _fail_from_outside(error: Exception) -> None:
    """Let Ray end this worker's group, although the training thread itself cannot raise."""
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback
    from ray.train.v2._internal.execution.context import get_train_context

    log.error("this rank hangs", error=str(error))
    runner = get_train_context().execution_context.training_thread_runner
    runner.get_exception_queue().put(UserExceptionWithTraceback(error, f"{error}"))


def _train(job: JobSpec, job_id: str, rank: int, watchdog: "Watchdog") -> JobResult:
    import ray.train.torch
    import torch

    _quiet_libraries()
    from workers.telemetry.monitor import MonitorLink

    torch.set_num_threads(max(1, int(job.workers.cpus)))
    device = ray.train.torch.get_device()
    if device.type == "cpu":
        keep_freed_memory()
    trained = _train_passing_over(job, MonitorLink(job_id), rank, device, watchdog)
    return JobResult(
        steps=trained.steps,
        samples=trained.samples,
        seconds=trained.seconds,
        loss=trained.loss,
        metrics=trained.metrics,
        bad_rows=trained.bad_rows,
        checkpoint=None,
    )


def _train_passing_over(
    job: JobSpec, link: "MonitorLink", rank: int, device: "torch.device", watchdog: "Watchdog"
) -> "Trained":
    """Train, and start again at the last checkpoint when a step is to be left out."""
    from workers.telemetry.sender import Telemetry
    from workers.training.checkpoint import RayCheckpoints
    from workers.training.ending import DivergedError
    from workers.training.loop import train

    skipped: set[int] = set()
    while True:
        attempt = _agree_on_attempt(link, rank)
        checkpoints = RayCheckpoints(attempt, collective_timeout(job), job.checkpoint.timeout_s)
        telemetry = Telemetry(link, rank, attempt)
        telemetry.start()
        try:
            return train(job, device, telemetry, checkpoints, watchdog, attempt, frozenset(skipped))
        except DivergedError as error:
            if len(skipped) >= job.training.max_skipped_steps:
                raise
            skipped.add(error.step)
            log.warning("leaving out a step", step=error.step, skipped=len(skipped), error=str(error))
            # So that all ranks find the same one when they start again.
            checkpoints.finish()
        finally:
            telemetry.close(timeout_s=5.0)


def _quiet_libraries() -> None:
    """TorchRec and fbgemm log some sixty lines per rank while they start, none of which a user can act on."""
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="torchrec", category=FutureWarning)


def _agree_on_attempt(link: "MonitorLink", rank: int) -> int:
    """How often the worker group was started before; the monitor counts, and rank 0 asks it for all."""
    import ray
    import torch.distributed as dist

    attempt = [0]
    if rank == 0:
        try:
            attempt = [link.next_attempt(timeout_s=10.0)]
        except (ValueError, ray.exceptions.RayError) as error:
            # Telemetry never stops training, and the number of the attempt is part of telemetry.
            log.warning("no answer from the monitor; this start is reported as attempt 0", error=str(error))
    dist.broadcast_object_list(attempt)
    return attempt[0]
