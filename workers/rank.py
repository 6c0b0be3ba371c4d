"""What Ray Train runs on every worker. Light to import: the driver hands it over by reference and needs no TorchRec."""

import logging
import traceback
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from workers.job import InvalidJob, JobSpec
from workers.memory import keep_freed_memory
from workers.reports import JobFailure, JobResult

if TYPE_CHECKING:
    from workers.telemetry.monitor import MonitorLink

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What a rank returns to the driver: a result, or a failure that no retry can cure."""

    result: JobResult | None = None
    failure: JobFailure | None = None


def run_rank(config: dict[str, str]) -> Outcome:
    """Train on this worker. `config` holds the `job` (a JobSpec as JSON) and its `job_id`.

    What is wrong with the job itself comes back as a failure, the same on every rank; any other exception is raised,
    and Ray starts the worker group again as often as the job's `retries` allow.
    """
    from pipeline import UnsupportedModel
    from workers.training.ending import DivergedError

    try:
        return Outcome(result=_train(JobSpec.model_validate_json(config["job"]), config["job_id"]))
    except (InvalidJob, UnsupportedModel, DivergedError) as error:
        return Outcome(failure=JobFailure(message=f"{error}", traceback=traceback.format_exc()))


def _train(job: JobSpec, job_id: str) -> JobResult:
    import ray.train
    import ray.train.torch
    import torch

    _quiet_libraries()
    from workers.telemetry.monitor import MonitorLink
    from workers.telemetry.sender import Telemetry
    from workers.training.checkpoint import RayCheckpoints
    from workers.training.loop import train

    torch.set_num_threads(max(1, int(job.workers.cpus)))
    device = ray.train.torch.get_device()
    if device.type == "cpu":
        keep_freed_memory()
    rank = ray.train.get_context().get_world_rank()
    link = MonitorLink(job_id)
    attempt = _agree_on_attempt(link, rank)
    telemetry = Telemetry(link, rank, attempt)
    telemetry.start()
    try:
        trained = train(job, device, telemetry, RayCheckpoints(attempt), attempt)
    finally:
        telemetry.close(timeout_s=5.0)
    return JobResult(
        steps=trained.steps,
        samples=trained.samples,
        seconds=trained.seconds,
        loss=trained.loss,
        metrics=trained.metrics,
        checkpoint=None,
    )


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
