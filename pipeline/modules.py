"""Which embedding modules a pipeline prioritizes, and why it leaves the others to TorchRec's own forward."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn
from torchrec.distributed.embedding import EmbeddingCollectionAwaitable, ShardedEmbeddingCollection
from torchrec.distributed.model_parallel import DistributedModelParallel, ShardedModule
from torchrec.distributed.pec_embedding import ShardedPECEmbeddingCollection
from torchrec.distributed.train_pipeline.pipeline_context import TrainPipelineContext
from torchrec.distributed.train_pipeline.utils import _rewrite_model
from torchrec.distributed.types import CommOp, NoWait, QuantizedCommCodecs, ShardingType

from pipeline.dedup import register_cpu_kernel
from pipeline.errors import UnsupportedModel
from pipeline.forward import PipelinedForward
from pipeline.tables import ignores_zero_gradients, table_batches

Fact = TypeVar("Fact")

# Deterministic, row by row, and with a time that `pipeline.tables` can set.
EXACT_OPTIMIZERS = {
    EmbOptimType.EXACT_SGD,
    EmbOptimType.EXACT_ADAGRAD,
    EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    EmbOptimType.ADAM,
    EmbOptimType.PARTIAL_ROWWISE_ADAM,
    EmbOptimType.LAMB,
    EmbOptimType.PARTIAL_ROWWISE_LAMB,
    EmbOptimType.LARS_SGD,
}
SHARDED = {ShardingType.ROW_WISE.value, ShardingType.TABLE_WISE.value, ShardingType.COLUMN_WISE.value}
# They convert value by value, so a part of a transfer is encoded as the whole would be.
ELEMENTWISE = {SparseType.FP32, SparseType.FP16, SparseType.BF16}


@dataclass(frozen=True)
class Group:
    """One sharding group of a module: its tables are looked up together and share transfers.

    `first_rows[f]` is the offset of feature f's table among the group's local rows. A `replicated` group is data
    parallel: it sends nothing, and its lookup belongs to forward. It `takes_zeros` if a gradient of zero changes
    no row, on any rank.
    """

    lookup: nn.Module
    tables: tuple[SplitTableBatchedEmbeddingBagsCodegen, ...]
    first_rows: tuple[int, ...]
    dim: int
    replicated: bool
    codecs: QuantizedCommCodecs | None
    takes_zeros: bool


@dataclass(frozen=True)
class PrioritizedModule:
    """An `EmbeddingCollection` whose AllToAlls the pipeline starts.

    `outer` is what the model calls: the collection itself, or TorchRec's PEC wrapper around it.
    """

    name: str
    outer: nn.Module
    sharded: ShardedEmbeddingCollection
    forward: PipelinedForward
    groups: tuple[Group, ...]

    @property
    def fact(self) -> str:
        tables = len(self.sharded._table_names)
        kinds = ", ".join(self.sharded._sharding_types)
        dedup = ", index dedup" if self.sharded._use_index_dedup else ""
        return f"{kinds}, {tables} table(s), dim {self.sharded._embedding_dim}{dedup}"

    def hand_over(self, context: Any, embeddings: list[Tensor]) -> None:
        """Give the model the embeddings of each group, `[num_trainer_ids, dim]` in trainer order."""
        sharded = self.sharded
        self.forward.prepare(
            EmbeddingCollectionAwaitable(
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
        )


@dataclass(frozen=True)
class Selection:
    """The outcome for a whole model. `rejected` maps module names to reasons."""

    prioritized: tuple[PrioritizedModule, ...]
    rejected: dict[str, str]

    @property
    def process_group(self) -> dist.ProcessGroup:
        """The ranks that share the prioritized modules; all ranks if there are none."""
        group = self.prioritized[0].sharded._env.process_group if self.prioritized else dist.group.WORLD
        assert group is not None, "torch.distributed is not initialized"
        return group

    def install(self) -> None:
        """Let the prioritized modules get their embeddings from the pipeline."""
        for module in self.prioritized:
            module.outer.forward = module.forward
            module.outer.is_pipelined = True  # type: ignore[assignment]

    def release(self) -> None:
        """Give every prioritized module its own forward back."""
        for module in self.prioritized:
            module.outer.forward = module.forward.original
            module.outer.is_pipelined = False  # type: ignore[assignment]


def select(model: nn.Module, before_original: Callable[[str], None]) -> Selection:
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
            "keep the dense computation in submodules that hold no embedding module, and control flow that depends on "
            "tensor values out of those that do"
        ) from error
    rejected = dict.fromkeys(untraceable, "its input is computed from the batch rather than taken from it")
    prioritized: list[PrioritizedModule] = []
    # A second call finds the stand-in of the first as the module's forward.
    twice = {original.name for original in originals if isinstance(original, PipelinedForward)}
    for module, original in zip(modules, originals, strict=True):
        if isinstance(original, PipelinedForward):
            continue
        forward = cast(PipelinedForward, module.forward)
        inner = module._embedding_collection if isinstance(module, ShardedPECEmbeddingCollection) else module
        if getattr(inner, "_use_index_dedup", False):
            register_cpu_kernel()
        # A rank may hold no table of a module, and would then know of no reason.
        reason = next((found for found in _on_all_ranks(_reason_against(inner)) if found is not None), None)
        if reason is None and forward.name in twice:
            raise UnsupportedModel(
                f"{forward.name} is called more than once in the model's forward; give each call a module of its own"
            )
        if reason is None:
            forward.original, forward.before_original = original, before_original
            prioritized.append(PrioritizedModule(forward.name, module, inner, forward, tuple(_groups(inner))))
        else:
            rejected[forward.name] = reason
            module.forward = original
            module.is_pipelined = False
    for name in _outermost_sharded(model):
        if name not in rejected and all(module.name != name for module in prioritized):
            rejected[name] = "the forward does not call it when it is traced"
    return Selection(tuple(prioritized), rejected)


def _outermost_sharded(model: nn.Module) -> list[str]:
    """The names of the sharded modules that are not part of another one, as tracing spells them."""
    inner = model.module if isinstance(model, DistributedModelParallel) else model
    names = [name for name, module in inner.named_modules() if isinstance(module, ShardedModule)]
    return [name for name in names if not any(name.startswith(f"{other}.") for other in names)]


def _on_all_ranks(fact: Fact) -> list[Fact]:
    """What each rank says, in rank order. Ranks that decide apart would wait for each other for ever."""
    facts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(facts, fact)
    return facts


def _reason_against(module: nn.Module) -> str | None:
    """Why this sharded module keeps TorchRec's own forward (which trains it exactly, but hides nothing)."""
    if not isinstance(module, ShardedEmbeddingCollection):
        return f"only EmbeddingCollection is prioritized, this is a {type(module).__name__}"
    if not SHARDED & set(module._sharding_types):
        return "its tables are data parallel, so it sends no embeddings"
    other = [kind for kind in module._sharding_types if kind not in {*SHARDED, ShardingType.DATA_PARALLEL.value}]
    if other:
        return f"sharding {', '.join(other)} is not prioritized; use {', '.join(sorted(SHARDED))}"
    codecs = _codecs(module)
    if codecs is not None and not {_precision(codecs.forward), _precision(codecs.backward)} <= ELEMENTWISE:
        return "only fp16 and bf16 communication is prioritized; other codecs mix the values of a transfer"
    for lookup, kind in zip(module._lookups, module._sharding_types, strict=True):
        if kind in SHARDED and (reason := _reason_against_tables(lookup)) is not None:
            return reason
    return None


def _reason_against_tables(lookup: nn.Module) -> str | None:
    tables = table_batches(lookup)
    if len(tables) != len(lookup._emb_modules):  # type: ignore[arg-type]
        return "only the fused compute kernel is prioritized"
    for table in tables:
        if table.optimizer not in EXACT_OPTIMIZERS:
            return f"the fused optimizer {table.optimizer.name} is not prioritized"
        if table._used_rowwise_adagrad_with_counter or table._used_rowwise_adagrad_with_global_weight_decay:
            return "counter-based and global weight decay change rows in the lookup, which is not prioritized"
    return None


def _codecs(module: ShardedEmbeddingCollection) -> QuantizedCommCodecs | None:
    # A single rank sends nothing, and TorchRec then leaves its codecs out.
    registry = (module.qcomm_codecs_registry or {}) if module._env.world_size > 1 else {}
    codecs: QuantizedCommCodecs | None = registry.get(CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL.name)
    return codecs


def _precision(codec: Any) -> SparseType:
    return cast(SparseType, getattr(codec, "_comm_precision", SparseType.FP32))


def _groups(module: ShardedEmbeddingCollection) -> Iterator[Group]:
    for sharding, lookup, kind in zip(
        module._sharding_type_to_sharding.values(), module._lookups, module._sharding_types, strict=True
    ):
        replicated = kind not in SHARDED
        first_rows: list[int] = []
        rows = 0
        for config in sharding._grouped_embedding_configs:
            for table in config.embedding_tables:
                first_rows.extend([rows] * len(table.feature_names))
                rows += table.local_rows
        tables = () if replicated else tuple(table_batches(lookup))
        yield Group(
            lookup,
            tables,
            tuple(first_rows),
            module._embedding_dim_for_sharding_type(kind),
            replicated,
            _codecs(module),
            takes_zeros=all(_on_all_ranks(all(map(ignores_zero_gradients, tables)))),
        )
