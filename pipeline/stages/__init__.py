"""What the stages do: one function per stage name, over everything that a schedule may order.

Each function reads its inputs through `Inputs` and returns its output. It never waits for a transfer (fences do), and
only the `*_a2a` and input stages start one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pipeline.dense_allreduce import DenseAllReduce, ddp_of
from pipeline.executor import StageFunction
from pipeline.modules import PrioritizedModule
from pipeline.runtime import Runtime
from pipeline.schedule import Schedule
from pipeline.split_backward import SplitBackward
from pipeline.stages.batch import BatchStages
from pipeline.stages.dense import DenseStages
from pipeline.stages.embedding import Embeddings, ProcessGroups
from pipeline.stages.overlap import OverlapStages
from pipeline.stages.parted import PartedEmbeddings
from pipeline.stages.whole import WholeEmbeddings

__all__ = ["ProcessGroups", "stage_functions"]


def stage_functions(
    schedule: Schedule,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    modules: tuple[PrioritizedModule, ...],
    groups: ProcessGroups,
    runtime: Runtime,
    dense_allreduce: DenseAllReduce | None,
    source: Callable[[], Any],
    poll: Callable[[], bool],
) -> dict[str, StageFunction]:
    """The functions for the stages of a schedule, by stage name. `source` yields host batches, None at the end;
    `poll` runs what may run during the present stage, as `Executor.poll` does.
    """
    names = {stage.name for stage in schedule.stages}
    sharding_groups = [group for module in modules for group in module.groups if not group.replicated]
    embeddings: Embeddings
    if "partition" in names:
        embeddings = PartedEmbeddings(sharding_groups, groups, runtime)
    else:
        embeddings = WholeEmbeddings(sharding_groups, groups, runtime)
    split_backward = SplitBackward(ddp_of(model)) if "weight_gradients" in names else None
    functions = {
        **BatchStages(device, modules, groups.priority, runtime, source).functions(),
        **OverlapStages(groups.priority, runtime).functions(),
        **embeddings.functions(),
        **DenseStages(model, optimizer, modules, embeddings, dense_allreduce, split_backward, poll).functions(),
    }
    unknown = names - set(functions)
    if unknown:
        raise ValueError(f"schedule {schedule.name!r}: no stage function for {', '.join(sorted(unknown))}")
    return {name: functions[name] for name in names}
