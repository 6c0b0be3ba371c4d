"""What a checkpoint holds, and how it is written to a folder and read from one."""

import io
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from workers.sources.schema import Samples
from workers.training.position import Position
from workers.training.sharded import ShardedModel

_RAGGED = ("values", "lengths")


def state_of(model: ShardedModel, position: Position) -> dict[str, Any]:
    """Everything that a training goes on from: model, both optimizers, position, and this rank's random states."""
    return {**model.state(), **_flat(position), **_random_states()}


def write(state: Mapping[str, Any], folder: Path, group: dist.ProcessGroup | None = None) -> None:
    """Write this rank's part. `folder` may differ between ranks; the parts belong together before they are read.

    Every rank of `group` (None: the default one) calls it.
    """
    # Not forced onto the disk: the folder is scratch, and what survives a crash is what was copied from it.
    save(dict(state), storage_writer=FileSystemWriter(folder, sync_files=False), process_group=group)


def read_state(model: ShardedModel, folder: Path) -> Position:
    """Read this rank's state from a folder with all parts; returns where it was written.

    Ranks beyond those that wrote it keep the random states that they have.
    """
    reader = FileSystemReader(folder)
    written = reader.read_metadata().state_dict_metadata
    randoms = {name: value for name, value in _random_states().items() if name in written}
    state = {**model.empty_state(), **_flat(Position()), **randoms}
    load(state, storage_reader=reader)
    model.load(state)
    _set_random_states({name: state[name] for name in randoms})
    return Position(**{name: state[f"position.{name}"] for name in asdict(Position())})


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, whole, by name; read by one process, without a model or a process group."""
    reader = FileSystemReader(folder)
    tensors: dict[str, torch.Tensor] = {
        name: torch.empty(stored.size, dtype=stored.properties.dtype)
        for name, stored in reader.read_metadata().state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def archive_of(samples: Samples) -> bytes:
    """Samples as a NumPy archive: `labels`, `dense`, and `FEATURE.values` and `FEATURE.lengths` for each feature."""
    ids = {f"{name}.{part}": getattr(ragged, part) for name, ragged in samples.ids.items() for part in _RAGGED}
    content = io.BytesIO()
    np.savez(content, labels=samples.labels, dense=samples.dense, **ids)
    return content.getvalue()


def _flat(position: Position) -> dict[str, Any]:
    """Not nested: torch takes a checkpoint for one of an old format when a rank has no part of some table, and would
    then look for a nested mapping in one piece.
    """
    return {f"position.{name}": value for name, value in asdict(position).items()}


def _random_states() -> dict[str, torch.Tensor]:
    rank = dist.get_rank()
    states = {f"random.cpu.rank-{rank}": torch.get_rng_state()}
    if torch.cuda.is_available():
        states[f"random.cuda.rank-{rank}"] = torch.cuda.get_rng_state()
    return states


def _set_random_states(states: Mapping[str, torch.Tensor]) -> None:
    for name, state in states.items():
        if name.startswith("random.cuda"):
            torch.cuda.set_rng_state(state)
        else:
            torch.set_rng_state(state)
