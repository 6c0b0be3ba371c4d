"""Which embedding modules a pipeline prioritizes, and why it leaves the others to TorchRec's own forward."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionAwaitable, ShardedEmbeddingCollection
from torchrec.distributed.pec_embedding import ShardedPECEmbeddingCollection
from torchrec.distributed.train_pipeline.pipeline_context import TrainPipelineContext
from torchrec.distributed.train_pipeline.runtime_forwards import BaseForward
from torchrec.distributed.train_pipeline.utils import _rewrite_model
from torchrec.distributed.types import NoWait, ShardingType

from pipeline.errors import UnsupportedModel

EXACT_OPTIMIZERS = {EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ROWWISE_ADAGRAD}


class PipelinedForward(BaseForward[TrainPipelineContext]):  # type: ignore[misc]  # TorchRec is untyped to mypy
    """Stands in for a sharded module's forward: hands over what the pipeline has prepared.

    Outside a step (evaluation, say) it calls the module's own forward.
    """

    prepared: Any = None
    original: Any = None
    before_original: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.prepared is not None:
            prepared, self.prepared = self.prepared, None
            return prepared
        self.before_original(self.name)
        return self.original(*args, **kwargs)


@dataclass(frozen=True)
class Group:
    """One sharding group of a module: its tables are looked up together and share transfers.

    `first_rows[f]` is the offset of feature f's table among the group's local rows.
    """

    lookup: nn.Module
    first_rows: tuple[int, ...]
    dim: int

    @property
    def tables(self) -> list[SplitTableBatchedEmbeddingBagsCodegen]:
        return [m for m in self.lookup.modules() if isinstance(m, SplitTableBatchedEmbeddingBagsCodegen)]


@dataclass(frozen=True)
class PrioritizedModule:
    """A row-wise sharded `EmbeddingCollection` whose AllToAlls the pipeline starts.

    `outer` is what the model calls: the collection itself, or TorchRec's PEC wrapper around it.
    """

    name: str
    outer: nn.Module
    sharded: ShardedEmbeddingCollection
    forward: PipelinedForward
    groups: tuple[Group, ...]

    @property
    def fact(self) -> str:
        tables, features = len(self.sharded._table_names), sum(len(group.first_rows) for group in self.groups)
        return f"row_wise, {tables} table(s), {features} feature(s), dim {self.groups[0].dim}"

    def hand_over(self, context: Any, embeddings: list[Any]) -> None:
        """Give the model the embeddings of each group, `[num_trainer_ids, dim]` in trainer order."""
        sharded = self.sharded
        self.forward.prepared = EmbeddingCollectionAwaitable(
            awaitables_per_sharding=[NoWait(rows) for rows in embeddings],
            features_per_sharding=[each.features_before_input_dist for each in context.sharding_contexts],
            embedding_names_per_sharding=sharded._embedding_names_per_sharding,
            ctx=context,
            need_indices=sharded._need_indices,
            features_to_permute_indices=sharded._features_to_permute_indices,
            use_gather_select=sharded._use_gather_select,
            use_gather_select_per_sharding=sharded._use_gather_select_per_sharding,
            use_sorted_select=sharded._use_sorted_select,
        )


@dataclass(frozen=True)
class Selection:
    """The outcome for a whole model. `rejected` maps module names to reasons."""

    prioritized: tuple[PrioritizedModule, ...]
    rejected: dict[str, str]


def select(model: nn.Module, before_original: Any) -> Selection:
    """Rewrite the model so that eligible modules get their embeddings from the pipeline.

    TorchRec's tracing finds each module's input in the batch. `before_original` is called with the module's name when
    a prioritized module runs its own forward, outside a step. Raises `UnsupportedModel` if the model cannot be traced
    or calls a sharded module more than once.
    """
    try:
        modules, _, originals, _, untraceable = _rewrite_model(
            model, TrainPipelineContext(version=1), None, pipelined_forward=PipelinedForward
        )
    except Exception as error:
        raise UnsupportedModel(
            f"the model's forward cannot be traced to find the inputs of its embedding modules: {error}; "
            "keep control flow that depends on tensor values out of the modules that hold embeddings"
        ) from error
    rejected = dict.fromkeys(untraceable, "its input is computed from the batch rather than taken from it")
    prioritized: list[PrioritizedModule] = []
    for module, original in zip(modules, originals, strict=True):
        forward = cast(PipelinedForward, module.forward)
        if isinstance(original, PipelinedForward):
            raise UnsupportedModel(
                f"{forward.name} is called more than once in the model's forward; give each call a module of its own"
            )
        inner = module._embedding_collection if isinstance(module, ShardedPECEmbeddingCollection) else module
        reason = _reason_against(inner)
        if reason is None:
            forward.original, forward.before_original = original, before_original
            prioritized.append(PrioritizedModule(forward.name, module, inner, forward, tuple(_groups(inner))))
        else:
            rejected[forward.name] = reason
            module.forward = original
            module.is_pipelined = False
    return Selection(tuple(prioritized), rejected)


def release(selection: Selection) -> None:
    """Give every prioritized module its own forward back."""
    for module in selection.prioritized:
        module.outer.forward = module.forward.original
        module.outer.is_pipelined = False  # type: ignore[assignment]


def _reason_against(module: nn.Module) -> str | None:
    """Why this sharded module keeps TorchRec's own forward (which trains it exactly, but hides nothing)."""
    if not isinstance(module, ShardedEmbeddingCollection):
        return f"only EmbeddingCollection is prioritized, this is a {type(module).__name__}"
    other = [kind for kind in module._sharding_types if kind != ShardingType.ROW_WISE.value]
    if other:
        return f"only row_wise sharding is prioritized, its plan has {', '.join(other)}"
    if module._use_index_dedup:
        return "index dedup is not prioritized; build its sharder without use_index_dedup"
    if module.qcomm_codecs_registry:
        return "quantized communication is not prioritized; build its sharder without qcomm_codecs_registry"
    for lookup in module._lookups:
        tables = [m for m in lookup.modules() if isinstance(m, SplitTableBatchedEmbeddingBagsCodegen)]
        if len(tables) != len(lookup._emb_modules):
            return "only the fused compute kernel is prioritized"
        for table in tables:
            if table.optimizer not in EXACT_OPTIMIZERS:
                return f"the fused optimizer {table.optimizer.name} is not prioritized"
    return None


def _groups(module: ShardedEmbeddingCollection) -> Iterator[Group]:
    for sharding, lookup, kind in zip(
        module._sharding_type_to_sharding.values(), module._lookups, module._sharding_types, strict=True
    ):
        first_rows: list[int] = []
        rows = 0
        for config in sharding._grouped_embedding_configs:
            for table in config.embedding_tables:
                first_rows.extend([rows] * len(table.feature_names))
                rows += table.local_rows
        yield Group(lookup, tuple(first_rows), module._embedding_dim_for_sharding_type(kind))


def process_group_of(modules: tuple[PrioritizedModule, ...]) -> dist.ProcessGroup | None:
    """The ranks that share the prioritized modules; None if there are no such modules."""
    return modules[0].sharded._env.process_group if modules else None
