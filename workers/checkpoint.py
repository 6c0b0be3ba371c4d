"""Sharded checkpoints: every rank writes its own part, and the parts together load into any number of ranks."""

from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from workers.sharded import ShardedModel


def save_part(model: ShardedModel, step: int, folder: Path) -> None:
    """Write this rank's part of the model and optimizer state after `step` steps. Every rank calls it.

    `folder` may be a different one on every rank; the parts belong into one folder before they are loaded. The
    pipeline must be flushed.
    """
    save({**model.state(), "step": step}, storage_writer=FileSystemWriter(folder))
