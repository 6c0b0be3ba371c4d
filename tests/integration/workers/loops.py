"""A small job for the training loop on gloo ranks, and its state read back."""

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from workers.job import parse_job
from workers.models import build_model
from workers.reports import SAMPLES, JobPlan, StepSample
from workers.sources import open_source
from workers.sources.schema import Samples
from workers.telemetry.sender import Fate, SampleBatch, Telemetry
from workers.training.ending import StoppedError
from workers.training.loop import Trained, train
from workers.training.position import Position
from workers.training.sharded import ShardedModel, shard
from workers.training.staging import Staging
from workers.training.state import archive_of, read_state, state_of, write
from workers.training.watchdog import Watchdog

JOB: dict[str, Any] = {
    "name": "small",
    "model": {"params": {"embedding_dim": 8, "hidden": [8]}},
    "data": {
        "source": "synthetic",
        "params": {"samples": 400, "rows": 200, "min_ids_per_sample": 0, "holdout_samples": 50, "dense": 2},
    },
    "training": {"batch_size": 16, "epochs": 2},
}


class Recorder:
    """A link that keeps what it is given."""

    incarnation = None

    def __init__(self) -> None:
        self.samples: list[StepSample] = []
        self.plans: list[JobPlan] = []

    def send(self, batch: SampleBatch) -> None:
        self.samples += SAMPLES.validate_json(batch.samples)

    def read_clock(self, timeout_s: float) -> float:
        return time.time()

    def stops(self, timeout_s: float) -> bool:
        return False

    def fate(self, ticket: object) -> Fate:
        return Fate.ARRIVED

    def announce(self, plan: JobPlan) -> None:
        self.plans.append(plan)


class FolderCheckpoints:
    """Checkpoints in one folder for all ranks, `step-N` each; restores `resume_from`.

    Each is written when the next one begins, from a copy, so that a copy which training can still change is found out.
    This rank's node is about to go, once, when `steps_until_notice` steps are trained.
    """

    def __init__(self, folder: Path, resume_from: int | None, steps_until_notice: int | None = None) -> None:
        self._folder, self._resume_from = folder, resume_from
        self._staging = Staging()
        self._unwritten: tuple[dict[str, Any], Path] | None = None
        self._left = steps_until_notice

    @property
    def urgent(self) -> bool:
        if self._left is not None and self._left > 0:
            self._left -= 1
        return self._left == 0

    def restore(self, model: ShardedModel) -> Position:
        if self._resume_from is None:
            return Position()
        return read_state(model, self._folder / f"step-{self._resume_from}")

    def keep_batch(self, samples: Samples, name: str) -> str:
        path = self._folder / f"{name}.npz"
        path.write_bytes(archive_of(samples))
        return str(path)

    def save(self, model: ShardedModel, position: Position, figures: dict[str, float | None]) -> None:
        self.finish()
        if self._left == 0:
            self._left = None
        self._unwritten = self._staging.copy(state_of(model, position)), self._folder / f"step-{position.steps}"

    def finish(self) -> None:
        if self._unwritten is not None:
            write(*self._unwritten)
            self._unwritten = None


class ToldTelemetry(Telemetry):
    """That of a rank which is told to stop when `steps_until_told` steps are trained; None: never."""

    def __init__(self, link: Recorder, rank: int, steps_until_told: int | None) -> None:
        super().__init__(link, rank, 0)
        self._left = steps_until_told

    @property
    def told_to_stop(self) -> bool:
        if self._left is not None and self._left > 0:
            self._left -= 1
        return self._left == 0


def read_case(device: torch.device, folder: Path, training: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The state of a checkpoint as this number of ranks reads it, every shard gathered; by name."""
    job = parse_job({**JOB, "training": {**JOB["training"], **training}})
    model = shard(build_model(job.model, open_source(job.data).schema), job.training, device)
    read_state(model, folder)
    found: dict[str, torch.Tensor] = {}
    _collect("", model.state(), found)
    return found


def _collect(name: str, value: Any, found: dict[str, torch.Tensor]) -> None:
    if isinstance(value, dict):
        for key, below in value.items():
            _collect(f"{name}/{key}", below, found)
    elif isinstance(value, torch.distributed._shard.sharded_tensor.ShardedTensor):
        whole = torch.zeros(value.size())
        value.gather(0, whole if dist.get_rank() == 0 else None)
        found[name] = whole
    elif isinstance(value, torch.Tensor):
        found[name] = value


def train_case(
    device: torch.device,
    folder: Path,
    training: dict[str, Any],
    every: int | None = None,
    resume_from: int | None = None,
    model: dict[str, Any] = JOB["model"],
    data: dict[str, Any] = JOB["data"],
    evaluation: dict[str, Any] | None = None,
    skipped: frozenset[int] = frozenset(),
    notice: dict[int, int] | None = None,
    stop: dict[int, int] | None = None,
) -> dict[str, Any]:
    """Train on this rank. `notice` says after how many steps the node of which rank is about to go, and `stop` after
    how many steps which rank is told to stop.
    """
    job = parse_job(
        {
            **JOB,
            "model": model,
            "data": data,
            "training": {**JOB["training"], **training},
            "evaluation": evaluation or {},
            "checkpoint": {"every_steps": every},
        }
    )
    recorder = Recorder()
    telemetry = ToldTelemetry(recorder, dist.get_rank(), (stop or {}).get(dist.get_rank()))
    telemetry.start()
    checkpoints = FolderCheckpoints(folder, resume_from, (notice or {}).get(dist.get_rank()))
    trained: Trained | StoppedError
    try:
        trained = train(job, device, telemetry, checkpoints, Watchdog(60.0, _hung), 0, skipped)
    except StoppedError as stopped:
        trained = stopped
    finally:
        # What was begun before a failure is complete: Ray's thread goes on with it, too.
        checkpoints.finish()
    telemetry.close(timeout_s=30)
    return {"trained": trained, "samples": recorder.samples, "plans": recorder.plans}


def _hung(error: Exception, where: str) -> None:
    raise AssertionError(f"hung at {where}") from error


def rewrite_case(device: torch.device, source: Path, target: Path, model: dict[str, Any]) -> None:
    """Load a checkpoint into this number of ranks and the model's sharding plan, and write it again."""
    job = parse_job({**JOB, "model": model})
    sharded = shard(build_model(job.model, open_source(job.data).schema), job.training, device, job.model.sharding)
    write(state_of(sharded, read_state(sharded, source)), target)


def assert_same_state(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, different
