"""What asynchronous checkpoints cost: steps with one against steps without, on two ranks of Ray Train.

The two take turns in the same run: a block of steps that begins with a checkpoint, and one that does not. A block ends
when its checkpoint is written, even if that takes longer than its steps.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.faults.run import own_ray
from benchmarks.faults.struck import RANKS
from benchmarks.results import Figure, Ratio, Result
from workers.job import JobSpec, parse_job

TURNS = int(os.environ.get("OVERLANE_CHECKPOINT_TURNS", "40"))
EVERY = 50
_TARGET = 1.05
_MIB = 2**20


def run() -> Result:
    """Both workloads, one after the other."""
    with tempfile.TemporaryDirectory(prefix="ovl-", dir="/tmp") as name, own_ray(Path(name) / "ray"):
        measured = [_measure(workload, Path(name)) for workload in WORKLOADS]
    return Result.now(
        "checkpoint",
        f"Blocks of {EVERY} steps on {RANKS} ranks that begin with an asynchronous checkpoint, against blocks without",
        f"at most {_TARGET} for each",
        reached=all(each.ratio.median <= _TARGET for each in measured),
        ratios=[each.ratio for each in measured],
        figures=[
            figure
            for workload, each in zip(WORKLOADS, measured, strict=True)
            for figure in (
                Figure(name=f"{workload.name}: state of all ranks, MiB", value=each.state_bytes / _MIB),
                Figure(name=f"{workload.name}: training stands still for a checkpoint, ms", value=each.stall_ms),
            )
        ],
    )


@dataclass(frozen=True)
class Workload:
    """What is trained."""

    name: str
    job: JobSpec


@dataclass(frozen=True)
class Measured:
    """The ratio of milliseconds per step, how much is written, and how long the loop stands still for it (median)."""

    ratio: Ratio
    state_bytes: int
    stall_ms: float


WORKLOADS = (
    Workload(
        "sequence ranker",
        parse_job(
            {
                "name": "ranker",
                "model": {"params": {"embedding_dim": 64, "hidden": [256, 128]}},
                "data": {
                    "source": "synthetic",
                    "params": {"samples": 40 * RANKS * 1024, "features": 2, "rows": 200_000, "ids_per_sample": 16},
                },
                "training": {"batch_size": 1024},
            }
        ),
    ),
    Workload("MovieLens-100K", parse_job({"name": "movielens", "model": {"params": {"embedding_dim": 64}}})),
)


def _measure(workload: Workload, folder: Path) -> Measured:
    from ray.train import CheckpointConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from workers.driver import set_defaults

    set_defaults(hang_timeout_s=600.0)
    result = TorchTrainer(
        _blocks,
        train_loop_config={"job": workload.job.model_dump_json()},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=RANKS, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name=workload.job.name,
            storage_path=str(folder / "storage"),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()
    turns, state_bytes, stall_ms = result.return_value
    ratio = Ratio.of(f"{workload.name} with a checkpoint", "without", turns)
    return Measured(ratio, state_bytes, stall_ms)


def _blocks(config: dict[str, str]) -> tuple[list[tuple[float, float]], int, float]:
    """On a rank: milliseconds per step with and without a checkpoint, turn by turn; see `Measured`."""
    import statistics

    import ray.train
    import torch

    from pipeline import TrainPipeline
    from workers.memory import keep_freed_memory
    from workers.models import build_model
    from workers.sources import open_source
    from workers.training.batches import to_batch
    from workers.training.checkpoint import RayCheckpoints
    from workers.training.position import Position
    from workers.training.sharded import shard

    torch.set_num_threads(1)
    keep_freed_memory()
    job = JobSpec.model_validate_json(config["job"])
    rank = ray.train.get_context().get_world_rank()
    source = open_source(job.data)
    model = shard(build_model(job.model, source.schema), job.training, torch.device("cpu"))
    batches = cycle(
        [to_batch(each, source.schema) for each in islice(source.train_batches(rank, RANKS, 1024, 1, 0), 40)]
    )
    pipe: Any = TrainPipeline(model.module, model.dense_optimizer, torch.device("cpu"))
    checkpoints = RayCheckpoints(0, timedelta(seconds=600), 600.0)
    steps, stalls = 0, []

    def block(saves: bool) -> float:
        nonlocal steps
        begin = time.perf_counter()
        if saves:
            pipe.flush()
            checkpoints.save(model, Position(steps), {})
            stalls.append((time.perf_counter() - begin) * 1e3)
        for _ in range(EVERY):
            pipe.progress(batches)
        steps += EVERY
        if saves:
            checkpoints.finish()
        return (time.perf_counter() - begin) * 1e3 / EVERY

    block(saves=True)
    block(saves=False)
    # Which one goes first changes, so that neither gets the better part of a slow drift.
    turns = []
    for turn in range(TURNS):
        first = block(saves=turn % 2 == 0)
        second = block(saves=turn % 2 == 1)
        turns.append((first, second) if turn % 2 == 0 else (second, first))
    pipe.flush()
    written = sum(_bytes_of(value) for value in model.state().values())
    return turns, written, statistics.median(stalls[1:])


def _bytes_of(value: Any) -> int:
    """Of all ranks: sharded tensors count whole, and what every rank has counts once."""
    import torch
    from torch.distributed._shard.sharded_tensor.api import ShardedTensor

    if isinstance(value, dict):
        return sum(_bytes_of(below) for below in value.values())
    if isinstance(value, ShardedTensor):
        return value.size().numel() * value.dtype.itemsize
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
