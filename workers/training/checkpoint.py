"""Sharded checkpoints: every rank writes its own part, and the parts together load into any number of ranks.

Ray Train collects the parts in one folder of the run's storage, keeps the newest, and hands the last one to a worker
group that starts again.
"""

import io
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import ray.train
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from workers.sources.schema import Samples
from workers.training.position import Position
from workers.training.sharded import ShardedModel

_RAGGED = ("values", "lengths")


class Checkpoints(Protocol):
    """Where the training loop leaves its state, and finds that of an earlier attempt. Every rank makes every call."""

    def restore(self, model: ShardedModel) -> Position:
        """Load the newest checkpoint into the model. Returns where it was written; the start without a checkpoint."""
        ...

    def save(self, model: ShardedModel, position: Position, figures: dict[str, float | None]) -> None:
        """Save the state at `position`, with figures that describe it. The pipeline must be flushed."""
        ...

    def keep_batch(self, samples: Samples, name: str) -> str:
        """Keep samples beside the checkpoints, as a NumPy archive. Returns where. Only some ranks call it."""
        ...


class RayCheckpoints:
    """Checkpoints in the storage of a Ray Train run. `save` blocks until all ranks have handed their parts over."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt

    def restore(self, model: ShardedModel) -> Position:
        """See `Checkpoints`."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return Position()
        with checkpoint.as_directory() as folder:
            return read_state(model, Path(folder))

    def save(self, model: ShardedModel, position: Position, figures: dict[str, float | None]) -> None:
        """See `Checkpoints`."""
        with tempfile.TemporaryDirectory(prefix="overlane-checkpoint-") as folder:
            write_part(model, position, Path(folder))
            ray.train.report(
                {"steps": position.steps, **figures},
                checkpoint=ray.train.Checkpoint.from_directory(folder),
                checkpoint_dir_name=f"step-{position.steps:08d}-attempt-{self._attempt}",
            )

    def keep_batch(self, samples: Samples, name: str) -> str:
        """See `Checkpoints`."""
        storage = ray.train.get_context().get_storage()
        path = f"{storage.experiment_fs_path}/{name}.npz"
        with storage.storage_filesystem.open_output_stream(path) as file:
            file.write(archive_of(samples))
        return path


def archive_of(samples: Samples) -> bytes:
    """Samples as a NumPy archive: `labels`, `dense`, and `FEATURE.values` and `FEATURE.lengths` for each feature."""
    ids = {f"{name}.{part}": getattr(ragged, part) for name, ragged in samples.ids.items() for part in _RAGGED}
    content = io.BytesIO()
    np.savez(content, labels=samples.labels, dense=samples.dense, **ids)
    return content.getvalue()


def write_part(model: ShardedModel, position: Position, folder: Path) -> None:
    """Write this rank's part. `folder` may differ between ranks; the parts belong together before they are read."""
    save({**model.state(), **_flat(position)}, storage_writer=FileSystemWriter(folder))


def read_state(model: ShardedModel, folder: Path) -> Position:
    """Read this rank's state from a folder with all parts; returns where it was written."""
    state = {**model.empty_state(), **_flat(Position())}
    load(state, storage_reader=FileSystemReader(folder))
    model.load(state)
    return Position(**{name: state[f"position.{name}"] for name in asdict(Position())})


def _flat(position: Position) -> dict[str, Any]:
    """Not nested: torch takes a checkpoint for one of an old format when a rank has no part of some table, and would
    then look for a nested mapping in one piece.
    """
    return {f"position.{name}": value for name, value in asdict(position).items()}
