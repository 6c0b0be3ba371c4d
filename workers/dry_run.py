"""Checks a job where it would run, without training it: the data opens, the model builds, the tables find their place.

It runs the user's own code, so it runs as a job of Ray, and never in the control plane. What it may take of the machine
is limited from within: the kernel ends it after its time, also in the middle of native code.
"""

import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from workers.capacity import find_shortage, places
from workers.job import InvalidJob, JobSpec, WorkersSpec
from workers.plans import (
    DRY_RUN_MEMORY_LIMIT_BYTES,
    DRY_RUN_TIME_LIMIT_S,
    Check,
    CheckName,
    Finding,
    Outcome,
    PlannedTraining,
)
from workers.sources import open_source
from workers.sources.schema import Source

if TYPE_CHECKING:
    from torch import nn

    from workers.training.planning import Group

Node = Mapping[str, float]

_GIB = 1024**3


class _EndedError(Exception):
    """A check did not come out well, and was told of; what builds on it cannot be checked."""


@contextmanager
def limited(seconds: int = DRY_RUN_TIME_LIMIT_S, memory_bytes: int = DRY_RUN_MEMORY_LIMIT_BYTES) -> Iterator[None]:
    """Limit time and memory of this process for the block. After the time it dies of SIGALRM."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = min(each for each in (memory_bytes, soft, hard) if each != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (least, hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def cluster_nodes() -> Sequence[Node]:
    """The resources of each node of the cluster that RAY_ADDRESS names, in Ray's words; without it, of this machine."""
    if not os.environ.get("RAY_ADDRESS"):
        import psutil

        return [{"CPU": float(os.cpu_count() or 1), "memory": float(psutil.virtual_memory().total)}]
    import ray

    ray.init(log_to_driver=False, configure_logging=False)
    try:
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()


class DryRun:
    """Makes the checks one after the other and tells the outcome of each at once."""

    def __init__(self, job: JobSpec, nodes: Sequence[Node], tell: Callable[[Finding], None]) -> None:
        self._job = job
        self._nodes = nodes
        self._tell = tell
        self._outcomes: list[Outcome] = []

    def run(self) -> bool:
        """Whether nothing speaks against the job. What fails ends it: without data, there is no model to build."""
        with suppress(_EndedError):
            source = self._source()
            self._plan(source, self._model(source))
        return Outcome.NO not in self._outcomes

    def _source(self) -> Source:
        with self._checking(CheckName.DATA, "data"):
            source = open_source(self._job.data)
            steps = self._steps(source, self._job.workers.min_count)
            if steps == 0:
                raise InvalidJob([f"data: there are fewer samples than the {self._job.workers.min_count} workers"])
        schema = source.schema
        found = f"{steps} steps; {len(schema.features)} features look up {len(schema.tables)} tables"
        self._told(CheckName.DATA, Outcome.OK, found)
        return source

    def _model(self, source: Source) -> "nn.Module":
        import torch

        from workers.models import build_model
        from workers.training.planning import table_bytes

        with self._checking(CheckName.MODEL, "model.factory"):
            torch.manual_seed(self._job.training.seed)
            model = build_model(self._job.model, source.schema)
        size = _size(table_bytes(model))
        self._told(CheckName.MODEL, Outcome.OK, f"{type(model).__name__}, with {size} of embedding tables")
        return model

    def _plan(self, source: Source, model: "nn.Module") -> None:
        from torchrec.distributed.planner.types import PlannerError

        from workers.training.planning import planner, sharded_tables, table_bytes, table_sharders

        training = self._job.training
        if (shortage := find_shortage(self._job.workers, self._nodes)) is not None:
            self._told(CheckName.TABLES, Outcome.NOT_CHECKED, f"there is no place for the workers: {shortage}")
            return
        group = group_on(self._job.workers, self._nodes)
        with self._checking(CheckName.TABLES, "model.sharding"):
            try:
                made = planner(model, training, group, self._job.model.sharding)
                plan = made.plan(model, table_sharders(training))
            except PlannerError as error:
                raise InvalidJob([_misfit(error, group, table_bytes(model))]) from None
        steps = self._steps(source, group.world_size)
        planned = PlannedTraining(steps=steps, world_size=group.world_size, sharding=sharded_tables(plan))
        if group.memory_bytes is None:
            why = "Ray does not say how much memory the GPUs have; the plan is for GPUs of 32 GiB"
            self._told(CheckName.TABLES, Outcome.NOT_CHECKED, why, planned)
        else:
            fits = f"{_size(table_bytes(model))} of tables fit {group.world_size} x {_size(group.memory_bytes)}"
            self._told(CheckName.TABLES, Outcome.OK, fits, planned)

    def _steps(self, source: Source, world_size: int) -> int:
        training = self._job.training
        steps = source.steps(world_size, training.batch_size, training.epochs)
        return steps if training.max_steps is None else min(steps, training.max_steps)

    @contextmanager
    def _checking(self, name: CheckName, field: str) -> Iterator[None]:
        """Within the block, whatever the job's data or the user's code raises becomes the outcome of the check."""
        try:
            yield
        except InvalidJob as error:
            self._told(name, Outcome.NO, "; ".join(error.problems))
            raise _EndedError from error
        except Exception as error:
            if _is_out_of_memory(error):
                limit = _size(DRY_RUN_MEMORY_LIMIT_BYTES)
                why = f"it takes more than the {limit} that a dry run may; make tables on the meta device"
                self._told(name, Outcome.NOT_CHECKED, why)
            else:
                self._told(name, Outcome.NO, f"{field}: it raises {type(error).__name__}: {error}")
            raise _EndedError from error

    def _told(self, name: CheckName, outcome: Outcome, detail: str, plan: PlannedTraining | None = None) -> None:
        self._outcomes.append(outcome)
        self._tell(Finding(check=Check(name=name, outcome=outcome, detail=detail), plan=plan))


def group_on(workers: WorkersSpec, nodes: Sequence[Node]) -> "Group":
    """The ranks on as few nodes as possible, the smallest group of an elastic one; there must be room for it.

    The workers of a node share its memory. The planner takes all ranks for equal, so the one with the least counts.
    """
    from workers.training.planning import Group

    left, shares, local_world_sizes = workers.min_count, [], []
    for node in sorted(nodes, key=lambda each: -places(workers, each)):
        here = min(left, places(workers, node))
        if here:
            shares.append(int(node.get("memory", 0.0)) // here)
            local_world_sizes.append(here)
            left -= here
    if workers.gpus:
        return Group(workers.min_count, local_world_sizes[0], "cuda")
    return Group(workers.min_count, local_world_sizes[0], "cpu", min(shares))


def _misfit(error: Exception, group: "Group", size: int) -> str:
    each = "" if group.memory_bytes is None else f" of {_size(group.memory_bytes)} each"
    reason = str(error).strip().partition("\n")[0].strip()
    return (
        f"tables: {_size(size)} of weights, and what training keeps beside them, find no place on "
        f"{group.world_size} workers{each}; take smaller tables, or more or larger workers ({reason})"
    )


def _is_out_of_memory(error: Exception) -> bool:
    """The limit is met by Python's allocator or by that of torch, which raises a plain `RuntimeError`."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


def _size(count: float) -> str:
    return f"{count / _GIB:.3g} GiB" if count >= _GIB else f"{count / 1024**2:.3g} MiB"
