"""Sharded checkpoints: every rank writes its own part, and the parts together load into any number of ranks.

Ray Train collects the parts in one folder of the run's storage, keeps the newest, and hands the last one to a worker
group that starts again. A checkpoint counts once all ranks have written their parts, so a crash while one is written
leaves the one before it in force.
"""

import os
import re
import shutil
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import ray.train
import structlog
import torch.distributed as dist
from pyarrow.fs import FileSelector
from ray.train import CheckpointConsistencyMode, CheckpointUploadMode
from ray.train.v2._internal.execution.context import get_train_context

from workers.sources.schema import Samples
from workers.training.position import Position
from workers.training.sharded import ShardedModel
from workers.training.staging import Staging
from workers.training.state import archive_of, read_state, state_of, write

log = structlog.get_logger(__name__)

_NICENESS = 10
_FOLDER = re.compile(r"step-\d{8,}-attempt-\d+(-\d+)?")


class CheckpointTimeoutError(Exception):
    """A rank cannot write its part of a checkpoint, and does not hear why."""


class Checkpoints(Protocol):
    """Where the training loop leaves its state, and finds that of an earlier attempt. Every rank makes every call."""

    @property
    def urgent(self) -> bool:
        """Whether a checkpoint is asked for out of turn, since a node is about to go. Ranks may differ."""
        ...

    def restore(self, model: ShardedModel) -> Position:
        """Load the newest checkpoint into the model. Returns where it was written; the start without a checkpoint."""
        ...

    def save(self, model: ShardedModel, position: Position, figures: dict[str, float | None]) -> None:
        """Save the state at `position`, with figures that describe it. The pipeline must be flushed.

        Training may go on as soon as this returns; the checkpoint counts when all of it is written.
        """
        ...

    def finish(self) -> None:
        """Wait until every checkpoint that was begun counts."""
        ...

    def keep_batch(self, samples: Samples, name: str) -> str:
        """Keep samples beside the checkpoints, as a NumPy archive. Returns where. Only some ranks call it."""
        ...


class RayCheckpoints:
    """Checkpoints in the storage of a Ray Train run, written by a thread of Ray's while training goes on."""

    def __init__(self, attempt: int, collectives: timedelta, write_timeout_s: float) -> None:
        """`collectives` is how long a rank waits for others while it writes, `write_timeout_s` how long for itself."""
        self._attempt, self._write_timeout_s = attempt, write_timeout_s
        # The thread's own group, since the order of its collectives against those of training is a matter of chance.
        self._group = dist.new_group(backend="gloo", timeout=collectives)
        self._written = threading.Event()
        self._written.set()
        self._staging = Staging()
        self._scratch = _scratch_prefix()
        self._folders: set[str] = set()
        self._answered: object = None

    @property
    def urgent(self) -> bool:
        """See `Checkpoints`. Ray tells every worker of a node that is being drained."""
        return get_train_context().preemption_context.preemption_info is not self._answered

    def restore(self, model: ShardedModel) -> Position:
        """See `Checkpoints`."""
        checkpoint = ray.train.get_checkpoint()
        if dist.get_rank() == 0:
            self._remove_unfinished()
        if checkpoint is None:
            return Position()
        with checkpoint.as_directory() as folder:
            return read_state(model, Path(folder))

    def save(self, model: ShardedModel, position: Position, figures: dict[str, float | None]) -> None:
        """See `Checkpoints`."""
        self._answered = get_train_context().preemption_context.preemption_info
        # The copy that the last checkpoint is written from is about to be overwritten.
        self.finish()
        state = self._staging.copy(state_of(model, position))
        written = self._written = threading.Event()
        folder = tempfile.mkdtemp(prefix=self._scratch)

        def write_and_upload(part: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
            # Linux counts niceness by thread: training goes first on the cores that both need.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
            write(state, Path(part.path), self._group)
            stored: ray.train.Checkpoint = get_train_context().get_storage().persist_current_checkpoint(part, name)
            written.set()
            return stored

        ray.train.report(
            {"steps": position.steps, **figures},
            checkpoint=ray.train.Checkpoint.from_directory(folder),
            checkpoint_dir_name=self._new_name(position),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=write_and_upload,
        )

    def finish(self) -> None:
        """See `Checkpoints`. Raises `CheckpointTimeoutError` if this rank cannot write its part: storage may hang."""
        if not self._written.wait(self._write_timeout_s):
            raise CheckpointTimeoutError(
                f"a checkpoint is not written after checkpoint.timeout_s={self._write_timeout_s:g}; look at the storage"
            )
        ray.train.get_all_reported_checkpoints(consistency_mode=CheckpointConsistencyMode.COMMITTED)

    def keep_batch(self, samples: Samples, name: str) -> str:
        """See `Checkpoints`."""
        storage = ray.train.get_context().get_storage()
        path = f"{storage.experiment_fs_path}/{name}.npz"
        with storage.storage_filesystem.open_output_stream(path) as file:
            file.write(archive_of(samples))
        return path

    def _new_name(self, position: Position) -> str:
        """No two checkpoints of a run have the same name, also when two are written at one position."""
        name = first = f"step-{position.steps:08d}-attempt-{self._attempt}"
        while name in self._folders:
            name = f"{first}-{len(self._folders)}"
        self._folders.add(name)
        return name

    def _remove_unfinished(self) -> None:
        """Remove what crashes have left half written. Ray knows of none of it, and would never remove it."""
        storage = ray.train.get_context().get_storage()
        counting = {Path(each.checkpoint.path).name for each in ray.train.get_all_reported_checkpoints()}
        found = storage.storage_filesystem.get_file_info(FileSelector(storage.experiment_fs_path, allow_not_found=True))
        for entry in found:
            if _FOLDER.fullmatch(entry.base_name) and entry.base_name not in counting:
                log.info("removing an unfinished checkpoint", folder=entry.path)
                storage.storage_filesystem.delete_dir(entry.path)


def _scratch_prefix() -> str:
    """What the folders begin with in which this rank writes its parts. Removes those that crashes have left here."""
    context = ray.train.get_context()
    prefix = f"overlane-checkpoint-{context.get_experiment_name()}-rank-{context.get_world_rank()}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    return prefix
