"""Random cases.

The first choice everywhere is what hypothesis shrinks to, and what it draws more often than the others. So it is the
smallest that can still go wrong: three steps with a few ids each, and a learning rate that changes. An empty dataset is
a choice as well, but a run of mostly empty datasets would prove nothing.

What plain TorchRec itself cannot train on CPU is left out where it is known (each such line says what fails), so that
few cases are thrown away.
"""

from typing import Any

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from hypothesis import strategies as st

from tests.integration.pipeline.property.case import (
    Action,
    Case,
    Codec,
    DataType,
    Flavour,
    Fused,
    Kind,
    Module,
    Sharding,
    Stream,
    Table,
    Use,
)

FEATURES = ("a", "b", "c", "d")
CODECS = (Codec.NONE, Codec.FP16, Codec.BF16)
OPTIMIZERS = (EmbOptimType.EXACT_ROWWISE_ADAGRAD, EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD)

# What plain TorchRec 1.9.2 with fbgemm 1.8.0 cannot train on CPU and gloo, and what it does instead:
#   sequence modules, data parallel     fbgemm's dense lookup pools although it is asked not to; right for a single id
#   PEC wrappers, not row-wise          ValueError in TorchRec
#   no sample on a rank                 ValueError for sequences, gloo's allgather refuses for row-wise pooled tables
#   a row-wise shard without rows       fbgemm asks for a GPU tensor
#   pooled, row-wise, uneven batches    gloo's allgather refuses
#   pooled, variable                    the same; errors for Adagrad, data parallel, and two groups of tables
#   pooled, grid beside other kinds     AssertionError in TorchRec
SHARDINGS = {
    Kind.SEQUENCE: (Sharding.ROW_WISE, Sharding.TABLE_WISE, Sharding.COLUMN_WISE),
    Kind.WRAPPED: (Sharding.ROW_WISE,),
    Kind.POOLED: tuple(kind for kind in Sharding if kind is not Sharding.GRID),
}
VARIABLE_POOLED = (Sharding.TABLE_WISE, Sharding.COLUMN_WISE)
VARIABLE_OPTIMIZERS = OPTIMIZERS[:2]
EVEN_ONLY = {Sharding.ROW_WISE, Sharding.TABLE_ROW_WISE, Sharding.GRID}
# All but the last suffice for 4 ranks, if they are sharded row-wise.
ROWS = (10, 11, 15, 20, 40, 2)
EPOCHS = ((3,), (1,), (2,), (4,), (6,), (8,), (3, 4), (6, 2), (5, 1), (0,), (0, 3))


def often(value: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Mostly `value`, sometimes one of the others."""
    return st.sampled_from((value,) * (2 * len(others)) + others)


@st.composite
def tables(draw: st.DrawFn, kind: Kind, dim: int, shardings: tuple[Sharding, ...]) -> Table:
    """One table. In a sequence module all have the same `dim`."""
    sharding = draw(st.sampled_from(shardings))
    replicated = kind is not Kind.POOLED and sharding is Sharding.DATA_PARALLEL
    return Table(
        rows=draw(st.sampled_from(ROWS[:-1] if sharding in EVEN_ONLY else ROWS)),
        features=tuple(
            draw(st.lists(st.sampled_from(FEATURES), min_size=1, max_size=1 if replicated else 3, unique=True))
        ),
        dim=draw(st.sampled_from((4, 8, 12))) if kind is Kind.POOLED else dim,
        sharding=sharding,
        data_type=draw(often(DataType.FP32, DataType.FP16)),
        mean=kind is Kind.POOLED and draw(st.booleans()),
    )


@st.composite
def modules(draw: st.DrawFn, variable: bool, single: bool) -> Module:
    """One embedding module with one to three tables. `single`: every sample has one id per feature."""
    kind = draw(st.sampled_from((Kind.SEQUENCE, Kind.SEQUENCE, Kind.WRAPPED, Kind.POOLED)))
    shardings, most = SHARDINGS[kind], 3
    if variable and kind is Kind.POOLED:
        shardings, most = VARIABLE_POOLED, 1
    if single and kind is Kind.SEQUENCE:
        shardings = (*shardings, Sharding.DATA_PARALLEL)
    dim = draw(st.sampled_from((4, 8, 16)))
    return Module(
        tables=tuple(draw(st.lists(tables(kind, dim, shardings), min_size=1, max_size=most).filter(_trainable))),
        kind=kind,
        weighted=draw(often(False, True)),
        use=draw(often(*Use)),
    )


def _trainable(chosen: list[Table]) -> bool:
    return sum(table.sharding is Sharding.DATA_PARALLEL for table in chosen) <= 1


@st.composite
def streams(draw: st.DrawFn, world_size: int, variable: bool, even: bool, single: bool) -> Stream:
    """Data and what is done between its steps. With `even` batches, all ranks have the same size in a step."""
    epochs = draw(st.sampled_from(EPOCHS))
    after = st.integers(0, max(0, sum(epochs) - 1))
    actions = draw(st.lists(st.tuples(after, st.sampled_from(Action)), max_size=2))
    samples = draw(st.lists(st.sampled_from((2, 1, 3, 4, 6, 9)), min_size=1, max_size=4))
    return Stream(
        epochs=epochs,
        samples=tuple(size for size in samples for _ in range(world_size if even and len(samples) > 1 else 1)),
        min_ids=1 if single else 0,
        max_ids=1 if single else draw(st.sampled_from((2, 1, 3, 4, 6, 0))),
        flavour=draw(st.sampled_from(Flavour)),
        variable=variable,
        missing=draw(often((), *((0,) * rank + (2,) for rank in range(world_size)))),
        actions=tuple(sorted(actions, key=lambda each: each[0])),
    )


@st.composite
def fused(draw: st.DrawFn, variable: bool) -> Fused:
    """A fused optimizer that fbgemm has for the CPU."""
    return Fused(
        optimizer=draw(st.sampled_from(VARIABLE_OPTIMIZERS if variable else OPTIMIZERS)),
        rates=draw(st.sampled_from(((0.1, 0.3), (0.1,), (0.1, 0.3, 0.02)))),
        weight_decay=draw(often(0.0, 0.1)),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A whole case."""
    world_size = draw(st.sampled_from((2, 1, 3, 4)))
    variable = draw(often(False, True))
    single = not variable and draw(often(False, True))
    chosen = tuple(draw(st.lists(modules(variable, single), min_size=1, max_size=2)))
    pooled = [table for module in chosen if module.kind is Kind.POOLED for table in module.tables]
    return Case(
        modules=chosen,
        world_size=world_size,
        schedule=draw(often("prioritized", "sparse_dist", "sync")),
        fused=draw(fused(variable)),
        stream=draw(streams(world_size, variable, any(table.sharding in EVEN_ONLY for table in pooled), single)),
        forward_codec=draw(often(*CODECS)),
        backward_codec=draw(often(*CODECS)),
        dedup=draw(often(False, True)),
        autocast=draw(often(False, True)),
        clip=draw(often(False, True)),
        accumulate=draw(often(1, 2, 3)),
        losses=draw(often(1, 2)),
        seed=draw(st.integers(0, 10_000)),
    )
