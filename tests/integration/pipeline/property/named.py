"""The combinations that the promise names, one record each. `docs/exactness.md` shows what became of them."""

from dataclasses import dataclass, replace

from fbgemm_gpu.split_embedding_configs import EmbOptimType

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

RW, TW, CW, DP = Sharding.ROW_WISE, Sharding.TABLE_WISE, Sharding.COLUMN_WISE, Sharding.DATA_PARALLEL
TRAINABLE_HERE = {
    EmbOptimType.EXACT_SGD: "SGD",
    EmbOptimType.EXACT_ADAGRAD: "Adagrad",
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: "row-wise Adagrad",
    EmbOptimType.EMAINPLACE_ROWWISE_ADAGRAD: "row-wise Adagrad with moving average",
}
NOT_ON_CPU = {
    EmbOptimType.ADAM: "Adam",
    EmbOptimType.PARTIAL_ROWWISE_ADAM: "partial row-wise Adam",
    EmbOptimType.LAMB: "LAMB",
    EmbOptimType.PARTIAL_ROWWISE_LAMB: "partial row-wise LAMB",
    EmbOptimType.LARS_SGD: "LARS-SGD",
}
WEIGHT_DECAY = ((EmbOptimType.EXACT_SGD, "SGD"), (EmbOptimType.EXACT_ROWWISE_ADAGRAD, "row-wise Adagrad"))


@dataclass(frozen=True)
class Record:
    """One combination.

    `cannot` says why plain TorchRec cannot train it on CPU; then `case` may be missing, if even trying it would damage
    the process. `bug` names a fault of the pipeline that is not mended yet.
    """

    topic: str
    name: str
    case: Case | None
    cannot: str = ""
    bug: str = ""


def one(*tables: Table, **options: object) -> Case:
    """A case with one sequence module."""
    return replace(Case(modules=(Module(tables),)), **options)


def beside(module: Module, **options: object) -> Case:
    """A case with a second module beside a plain one."""
    return replace(Case(modules=(Module((Table(20),)), module)), **options)


def stream(**options: object) -> Case:
    """A case with two tables in one module and other data."""
    return one(Table(20, ("a", "b")), Table(15, ("c",)), stream=replace(Stream(epochs=(6,)), **options))


def bags(*tables: Table, **options: object) -> Module:
    return replace(Module(tables, kind=Kind.POOLED), **options)


SHARDING = [
    *(
        Record(
            "Sharding", f"row-wise, {ranks} rank(s)", one(Table(21, ("a", "b")), Table(30, ("c",)), world_size=ranks)
        )
        for ranks in (1, 2, 3, 4)
    ),
    Record("Sharding", "row-wise, uneven shards (10 rows on 4 ranks)", one(Table(10), world_size=4)),
    Record(
        "Sharding",
        "row-wise, a shard without rows",
        one(Table(3), world_size=4),
        "fbgemm's CPU lookup refuses a group without rows",
    ),
    Record("Sharding", "table-wise", one(Table(20, sharding=TW), Table(15, ("b",), sharding=TW))),
    Record("Sharding", "table-wise, ranks without a table", one(Table(20, ("a", "b"), sharding=TW), world_size=4)),
    Record("Sharding", "column-wise", one(Table(20, dim=8, sharding=CW), Table(15, ("b",), 8, CW))),
    Record("Sharding", "column-wise, several shards on one rank", one(Table(20, dim=16, sharding=CW))),
    Record(
        "Sharding",
        "data-parallel beside row-wise, one id per sample",
        one(Table(20), Table(15, ("b",), sharding=DP), stream=Stream(min_ids=1, max_ids=1)),
    ),
    Record(
        "Sharding",
        "data-parallel, several ids per sample",
        None,
        "fbgemm's dense CPU lookup pools although it is asked not to",
    ),
    Record(
        "Sharding",
        "row-wise, table-wise and column-wise in one module",
        one(Table(20, ("a", "b"), 8), Table(15, ("b",), 8, TW), Table(12, ("c",), 8, CW), world_size=3),
    ),
    Record(
        "Sharding",
        "modules with different dimensions and data types",
        Case((Module((Table(20, dim=16),)), Module((Table(15, ("b",), 4, data_type=DataType.FP16),)))),
    ),
    Record(
        "Sharding", "FP32 and FP16 tables in one module", one(Table(20), Table(15, ("b",), data_type=DataType.FP16))
    ),
]

POOLED = [
    *(
        Record("Pooled tables beside an EmbeddingCollection", f"{kind}", beside(bags(Table(20, ("b", "c"), 8, kind))))
        for kind in Sharding
    ),
    Record("Pooled tables beside an EmbeddingCollection", "weighted", beside(bags(Table(20, ("b",)), weighted=True))),
    Record("Pooled tables beside an EmbeddingCollection", "mean pooling", beside(bags(Table(20, ("b",), mean=True)))),
    Record("Pooled tables beside an EmbeddingCollection", "none but pooled", Case((bags(Table(20, ("a", "b"))),))),
]

INPUTS = [
    Record("Inputs", "batch sizes that change over steps and ranks", stream(samples=(3, 7, 1, 4, 2))),
    Record("Inputs", "variable stride per feature (VBE)", stream(variable=True, samples=(3, 7, 4))),
    Record(
        "Inputs",
        "variable stride per feature, table-wise and column-wise",
        one(Table(20, ("a",), 8, TW), Table(15, ("b",), 8, CW), stream=Stream(variable=True, samples=(3, 7, 4))),
    ),
    Record("Inputs", "weighted features in an EmbeddingCollection", Case((Module((Table(20),), weighted=True),))),
    Record("Inputs", "a feature that two tables share", one(Table(20, ("a", "b")), Table(15, ("b", "c")))),
    Record("Inputs", "a table with several features", one(Table(20, ("a", "b", "c")))),
    Record(
        "Inputs", "ids that repeat within a sample", one(Table(2, sharding=TW), stream=Stream(min_ids=4, max_ids=8))
    ),
    Record("Inputs", "no ids at all", stream(max_ids=0)),
    Record("Inputs", "all ids equal to those of the batch before (all OL)", stream(flavour=Flavour.EQUAL)),
    Record("Inputs", "no id in the batch before (all NOL)", stream(flavour=Flavour.DISJOINT)),
    Record("Inputs", "a single batch", stream(epochs=(1,))),
    Record("Inputs", "an empty dataset", stream(epochs=(0,))),
    Record("Inputs", "ranks whose data end at different steps", stream(missing=(0, 2))),
    Record(
        "Inputs",
        "a rank without samples, sequence tables",
        stream(samples=(0, 4)),
        "TorchRec cannot split an output of no samples by feature",
    ),
    Record(
        "Inputs",
        "a rank without samples, pooled table-wise tables",
        Case((bags(Table(20, ("a", "b"), sharding=TW)),), stream=Stream(samples=(0, 4))),
    ),
]

MODELS = [
    *(
        Record("Models", f"a module {use}", beside(Module((Table(15, ("b",)),), use=use), stream=evaluated))
        for evaluated in (Stream(epochs=(6,), actions=((2, Action.EVALUATE),)),)
        for use in (Use.IN_TRAINING, Use.EVERY_OTHER, Use.AT_TIMES, Use.NEVER, Use.BY_BATCH, Use.TWICE)
    ),
    Record(
        "Models",
        "a pooled module called twice",
        beside(bags(Table(15, ("b",)), use=Use.TWICE)),
    ),
    Record("Models", "an embedding that the loss does not use", beside(Module((Table(15),), use=Use.NOT_IN_LOSS))),
    Record(
        "Models",
        "an embedding that the loss does not use, with weight decay",
        beside(Module((Table(15),), use=Use.NOT_IN_LOSS), fused=Fused(weight_decay=0.1)),
    ),
    Record(
        "Models",
        "the same, in a table-wise table, which some ranks have no part of",
        beside(Module((Table(15, ("b",), sharding=TW),), use=Use.NOT_IN_LOSS), fused=Fused(weight_decay=0.1)),
    ),
    Record("Models", "one input that several modules use", beside(Module((Table(15, ("a", "b")),)))),
    Record("Models", "gradient accumulation in the dense optimizer", replace(stream(), accumulate=3)),
    Record("Models", "several losses", replace(stream(), losses=2)),
    Record("Models", "autocast to bf16 in the dense part", replace(stream(), autocast=True)),
    Record("Models", "dense gradients clipped by global norm", replace(stream(), clip=True)),
    Record("Models", "PECEmbeddingCollection", Case((Module((Table(20, ("a", "b")),), kind=Kind.WRAPPED),))),
    Record("Models", "managed collision module", beside(Module((Table(40, ("b",)),), kind=Kind.COLLISION))),
]

LOOPS = [
    Record("Training loop", "flush after every step", stream(actions=tuple((n, Action.FLUSH) for n in range(6)))),
    Record("Training loop", "evaluation in the middle", stream(actions=((1, Action.EVALUATE), (4, Action.EVALUATE)))),
    Record("Training loop", "several epochs over new iterators", stream(epochs=(3, 1, 4))),
    Record(
        "Training loop",
        "state_dict and load_state_dict between steps",
        stream(actions=((1, Action.SAVE), (3, Action.LOAD), (4, Action.EVALUATE))),
    ),
    Record(
        "Training loop", "detach, a batch by hand, attach", stream(actions=((1, Action.BY_HAND), (3, Action.BY_HAND)))
    ),
]

COMMUNICATION = [
    Record(
        "Quantized communication",
        f"{forward} forward, {backward} backward",
        replace(stream(), forward_codec=forward, backward_codec=backward),
    )
    for forward, backward in ((Codec.FP16, Codec.FP16), (Codec.BF16, Codec.BF16), (Codec.FP16, Codec.BF16))
]

OPTIMIZERS = [
    *(
        Record("Fused optimizers", name, replace(stream(), fused=Fused(optimizer)))
        for optimizer, name in TRAINABLE_HERE.items()
    ),
    *(
        Record("Fused optimizers", f"{name} with weight decay", replace(stream(), fused=Fused(optimizer, (0.1,), 0.1)))
        for optimizer, name in WEIGHT_DECAY
    ),
    *(
        Record(
            "Fused optimizers",
            f"{name}, another learning rate in every step",
            replace(stream(), fused=Fused(optimizer, (0.1, 0.4, 0.02, 0.2))),
        )
        for optimizer, name in WEIGHT_DECAY
    ),
    *(
        Record("Fused optimizers", name, replace(stream(), fused=Fused(optimizer)), "fbgemm has it for CUDA only")
        for optimizer, name in NOT_ON_CPU.items()
    ),
]

SCHEDULES = [
    Record("Schedules", schedule, replace(stream(), schedule=schedule))
    for schedule in ("sync", "sparse_dist", "prioritized")
]

RECORDS = (*SHARDING, *POOLED, *INPUTS, *MODELS, *LOOPS, *COMMUNICATION, *OPTIMIZERS, *SCHEDULES)
