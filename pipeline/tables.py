"""What a fused optimizer knows about time: the learning rate and the iteration of a batch.

A gradient that is applied later than plain training would must see the time of its own batch; and lookups that plain
training does not do must not count as iterations.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import nn

# Their lookup returns before fbgemm counts an iteration.
UNCOUNTED = {EmbOptimType.EXACT_SGD, EmbOptimType.LARS_SGD, EmbOptimType.EXACT_ADAGRAD}


Tables = Sequence[SplitTableBatchedEmbeddingBagsCodegen]


@dataclass(frozen=True)
class TableTime:
    """The time of one batch for one table batch (TBE). `iteration` counts from 1; None where fbgemm does not count."""

    learning_rate: float
    iteration: int | None


def table_batches(lookup: nn.Module) -> list[SplitTableBatchedEmbeddingBagsCodegen]:
    """The TBEs of a lookup: each holds the local shards of some tables, with one fused optimizer."""
    return [module for module in lookup.modules() if isinstance(module, SplitTableBatchedEmbeddingBagsCodegen)]


def advance(tables: Tables) -> list[TableTime]:
    """Count one iteration, as plain training does in its lookup, and return the time of this batch."""
    times = []
    for table in tables:
        iteration = _iteration(table)
        if iteration is not None:
            _set_iteration(table, iteration + 1)
        times.append(_time(table))
    return times


def times_of(tables: Tables) -> list[TableTime]:
    """The present time, for lookups that count by themselves."""
    return [_time(table) for table in tables]


def uncount(tables: Tables) -> None:
    """Take back one iteration: a lookup was made whose rows the model then did not ask for."""
    for table in tables:
        iteration = _iteration(table)
        if iteration is not None:
            _set_iteration(table, iteration - 1)


@contextmanager
def uncounted(tables: Tables) -> Iterator[None]:
    """Lookups in here leave no trace in the iteration counters."""
    before = times_of(tables)
    try:
        yield
    finally:
        _set(tables, before)


@contextmanager
def at(tables: Tables, times: list[TableTime]) -> Iterator[None]:
    """A lookup in here, and its backward, see the time of another batch; afterwards the present one is back."""
    now = times_of(tables)
    earlier = [TableTime(each.learning_rate, None if each.iteration is None else each.iteration - 1) for each in times]
    _set(tables, earlier)
    try:
        yield
    finally:
        _set(tables, now)


@contextmanager
def at_rates(tables: Tables, times: list[TableTime]) -> Iterator[None]:
    """A backward in here, whose lookup has already counted, sees the learning rates of another batch."""
    now = times_of(tables)
    _set_rates(tables, times, now)
    try:
        yield
    finally:
        _set_rates(tables, now, times)


def ignores_zero_gradients(table: SplitTableBatchedEmbeddingBagsCodegen) -> bool:
    """Whether applying a gradient of zero changes nothing, bit for bit."""
    harmless = {EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD}
    return table.optimizer in harmless and table.optimizer_args.weight_decay == 0


def _time(table: SplitTableBatchedEmbeddingBagsCodegen) -> TableTime:
    return TableTime(float(table.get_learning_rate()), _iteration(table))


def _set(tables: Tables, times: list[TableTime]) -> None:
    for table, time in zip(tables, times, strict=True):
        if time.learning_rate != table.get_learning_rate():
            table.set_learning_rate(time.learning_rate)
        if time.iteration is not None:
            _set_iteration(table, time.iteration)


def _set_rates(tables: Tables, times: list[TableTime], current: list[TableTime]) -> None:
    for table, time, present in zip(tables, times, current, strict=True):
        if time.learning_rate != present.learning_rate:
            table.set_learning_rate(time.learning_rate)


def _iteration(table: SplitTableBatchedEmbeddingBagsCodegen) -> int | None:
    if table.optimizer in UNCOUNTED:
        return None
    # fbgemm computes with the counter on the CPU, and takes it from the checkpointed one when it is still zero.
    return int(table.iter_cpu.item()) or int(table.iter.item())


def _set_iteration(table: SplitTableBatchedEmbeddingBagsCodegen, iteration: int) -> None:
    table.iter_cpu.fill_(iteration)
    table.iter.fill_(iteration)
