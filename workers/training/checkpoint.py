"""Sharded checkpoints: every rank writes its own part, and the parts together load into any number of ranks.

Ray Train collects the parts in one folder of the run's storage, keeps the newest, and hands the last one to a worker
group that starts again.
"""

import tempfile
from pathlib import Path
from typing import Protocol

import ray.train
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from workers.training.sharded import ShardedModel


class Checkpoints(Protocol):
    """Where the training loop leaves its state, and finds that of an earlier attempt. Every rank makes every call."""

    def restore(self, model: ShardedModel) -> int:
        """Load the newest checkpoint into the model. Returns the number of steps behind it, 0 without a checkpoint."""
        ...

    def save(self, model: ShardedModel, steps: int, figures: dict[str, float | None]) -> None:
        """Save the state after `steps` steps, with figures that describe it. The pipeline must be flushed."""
        ...


class RayCheckpoints:
    """Checkpoints in the storage of a Ray Train run. `save` blocks until all ranks have handed their parts over."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt

    def restore(self, model: ShardedModel) -> int:
        """See `Checkpoints`."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return 0
        with checkpoint.as_directory() as folder:
            return read_state(model, Path(folder))

    def save(self, model: ShardedModel, steps: int, figures: dict[str, float | None]) -> None:
        """See `Checkpoints`."""
        with tempfile.TemporaryDirectory(prefix="overlane-checkpoint-") as folder:
            write_part(model, steps, Path(folder))
            ray.train.report(
                {"steps": steps, **figures},
                checkpoint=ray.train.Checkpoint.from_directory(folder),
                checkpoint_dir_name=f"step-{steps:08d}-attempt-{self._attempt}",
            )


def write_part(model: ShardedModel, steps: int, folder: Path) -> None:
    """Write this rank's part. `folder` may differ between ranks; the parts belong together before they are read."""
    save({**model.state(), "steps": steps}, storage_writer=FileSystemWriter(folder))


def read_state(model: ShardedModel, folder: Path) -> int:
    """Read this rank's state from a folder with all parts; returns the number of steps behind it."""
    state = {**model.empty_state(), "steps": 0}
    load(state, storage_reader=FileSystemReader(folder))
    model.load(state)
    steps: int = state["steps"]
    return steps
