"""What is trained twice and compared: a frozen description of a model, its plan, its data and its training loop.

Everything random in a case (weights, ids) is drawn inside the ranks from `seed`, so a case stays small and can shrink.
A case prints only what differs from the defaults, and what it prints can be pasted into a test.
"""

from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from typing import Any

from fbgemm_gpu.split_embedding_configs import EmbOptimType


class Brief:
    """A short repr: only the fields that differ from their defaults."""

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={_spell(getattr(self, field.name))}"
            for field in fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _spell(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_spell, value))}{',' * (len(value) == 1)})"
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


class Kind(StrEnum):
    """The TorchRec module that holds the tables."""

    SEQUENCE = "EmbeddingCollection"
    WRAPPED = "PECEmbeddingCollection"
    POOLED = "EmbeddingBagCollection"
    COLLISION = "ManagedCollisionEmbeddingCollection"


class Sharding(StrEnum):
    """How a table is placed."""

    ROW_WISE = "row_wise"
    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    DATA_PARALLEL = "data_parallel"
    TABLE_ROW_WISE = "table_row_wise"
    GRID = "grid_shard"


class DataType(StrEnum):
    """The data type of a table's weights."""

    FP32 = "FP32"
    FP16 = "FP16"


class Codec(StrEnum):
    """What TorchRec's quantized communication sends."""

    NONE = "none"
    FP16 = "fp16"
    BF16 = "bf16"


class Use(StrEnum):
    """What the model does with a module."""

    IN_LOSS = "the loss depends on it"
    NOT_IN_LOSS = "called, but the loss does not depend on it"
    IN_TRAINING = "called in training only"
    NEVER = "never called"
    BY_BATCH = "called or not, depending on a number in the batch"
    EVERY_OTHER = "called every other time, the first included"
    AT_TIMES = "called every other time, the first not included"
    TWICE = "called twice"


class Flavour(StrEnum):
    """What consecutive batches have in common."""

    RANDOM = "random ids"
    EQUAL = "equal ids in all batches"
    DISJOINT = "no id in two consecutive batches"


class Action(StrEnum):
    """What the training loop does between two steps."""

    FLUSH = "flush"
    EVALUATE = "evaluate"
    SAVE = "take a state_dict"
    LOAD = "load the state_dict that was taken last"
    BY_HAND = "detach, train one batch by hand, attach"


@dataclass(frozen=True, repr=False)
class Table(Brief):
    """One embedding table and the features that look it up. All tables of a sequence module have one `dim`."""

    rows: int = 10
    features: tuple[str, ...] = ("a",)
    dim: int = 4
    sharding: Sharding = Sharding.ROW_WISE
    data_type: DataType = DataType.FP32
    mean: bool = False


@dataclass(frozen=True, repr=False)
class Module(Brief):
    """One embedding module of the model; `weighted` ones get ids with weights."""

    tables: tuple[Table, ...] = (Table(),)
    kind: Kind = Kind.SEQUENCE
    weighted: bool = False
    use: Use = Use.IN_LOSS


@dataclass(frozen=True, repr=False)
class Fused(Brief):
    """The fused optimizer of all tables; batch b is trained with `rates[b % len(rates)]`."""

    optimizer: EmbOptimType = EmbOptimType.EXACT_ROWWISE_ADAGRAD
    rates: tuple[float, ...] = (0.1,)
    weight_decay: float = 0.0


@dataclass(frozen=True, repr=False)
class Stream(Brief):
    """The data. `epochs` are numbers of batches; rank r of the last epoch has `missing[r]` fewer.

    `samples` are the batch sizes, dealt out in turn over steps and ranks. `actions` follow the step of that number.
    A sample has `min_ids` to `max_ids` ids of each feature. With `variable` every feature has a batch size of its own,
    and the batch an inverse index.
    """

    epochs: tuple[int, ...] = (4,)
    samples: tuple[int, ...] = (4,)
    min_ids: int = 0
    max_ids: int = 3
    flavour: Flavour = Flavour.RANDOM
    variable: bool = False
    missing: tuple[int, ...] = ()
    actions: tuple[tuple[int, Action], ...] = ()


@dataclass(frozen=True, repr=False)
class Case(Brief):
    """One training run.

    With `dedup` a rank asks for a distinct id of a table once, in the plain run too. `accumulate` is how many batches
    the dense optimizer gathers before it steps, `losses` how many the model returns.
    """

    modules: tuple[Module, ...] = (Module(),)
    world_size: int = 2
    schedule: str = "prioritized"
    fused: Fused = Fused()
    stream: Stream = Stream()
    forward_codec: Codec = Codec.NONE
    backward_codec: Codec = Codec.NONE
    dedup: bool = False
    autocast: bool = False
    clip: bool = False
    accumulate: int = 1
    losses: int = 1
    seed: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """Every feature of a batch, in the order in which tables name them."""
        names = [name for module in self.modules for table in module.tables for name in table.features]
        return tuple(dict.fromkeys(names))

    def rows_of(self, feature: str) -> int:
        """How many different ids a feature may have: as many as its smallest table has rows."""
        return min(table.rows for module in self.modules for table in module.tables if feature in table.features)

    def batches_of(self, epoch: int, rank: int) -> int:
        """How many batches a rank has in an epoch."""
        missing = self.stream.missing
        last = epoch == len(self.stream.epochs) - 1
        return max(0, self.stream.epochs[epoch] - (missing[rank] if last and rank < len(missing) else 0))

    def steps_of(self, epoch: int) -> int:
        """How many batches all ranks have in an epoch."""
        return min(self.batches_of(epoch, rank) for rank in range(self.world_size))
