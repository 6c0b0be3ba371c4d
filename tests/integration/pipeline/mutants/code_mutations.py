"""Single changes to what the stages, the executor and the runtimes do, each put in by patching for a while."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline import masks, split_backward
from pipeline.autograd import Graph
from pipeline.dense_allreduce import DenseAllReduce
from pipeline.exchange import Exchange, Part, TrainerSplit
from pipeline.executor import Executor
from pipeline.runtime import CpuRuntime, CudaRuntime, Output, Runtime, cuda
from pipeline.schedule import Lane, Stage
from pipeline.split_backward import SplitBackward
from pipeline.stages import overlap, parted, whole
from pipeline.stages.dense import DenseStages
from pipeline.tables import Tables, TableTime

Mutation = AbstractContextManager[object]


def _around(target: Any, name: str, change: Callable[..., Any]) -> Mutation:
    """Replace a function by `change(original, *its arguments)`. Raises AttributeError if there is no such function."""
    original = getattr(target, name)
    return mock.patch.object(target, name, lambda *args, **kwargs: change(original, *args, **kwargs))


def _method(target: type, name: str, change: Callable[..., Any]) -> Mutation:
    """The same for a method: `change(original, self, *its arguments)`."""
    original = getattr(target, name)

    def changed(self: object, *args: Any, **kwargs: Any) -> Any:
        return change(original, self, *args, **kwargs)

    return mock.patch.object(target, name, changed)


# --- gradients on their way to the tables


# The two kinds of embedding stages, by name since a mutant travels to the ranks.
STAGES = {"parted": parted, "whole": whole}


def no_division(stages: str) -> Mutation:
    return _around(STAGES[stages], "to_owner_order", lambda original, part, wire, world_size: original(part, wire, 1))


def no_gradient_permutation(stages: str) -> Mutation:
    def unordered(original: Any, part: Part, wire: Tensor, world_size: int) -> Tensor:
        return original(replace(part, index=torch.arange(len(part.index))), wire, world_size)

    return _around(STAGES[stages], "to_owner_order", unordered)


def gradients_in_trainer_order() -> Mutation:
    def unordered(original: Any, codec: Any, gradient: Tensor, end: Part) -> Any:
        return original(codec, gradient, replace(end, index=end.index.sort().values))

    return _around(parted, "_on_the_wire", unordered)


# --- embeddings on their way to the trainers


def no_embedding_permutation() -> Mutation:
    def unordered(original: Any, arrivals: list[tuple[Part, Tensor]]) -> Tensor:
        return torch.cat([wire for _, wire in arrivals])

    return _around(parted, "merge", unordered)


def rows_in_owner_order() -> Mutation:
    def unordered(original: Any, *arguments: Any) -> Exchange:
        exchange = original(*arguments)
        index = exchange.owner.part.index.sort().values
        return replace(exchange, owner=replace(exchange.owner, part=replace(exchange.owner.part, index=index)))

    original = Exchange.of
    return mock.patch.object(Exchange, "of", lambda *arguments: unordered(original, *arguments))


# --- what two batches share


def masks_inverted(*, forward: bool, backward: bool) -> Mutation:
    def inverted(original: Any, rows: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        mask, earlier = original(rows, previous)
        return ~mask if forward else mask, ~earlier if backward else earlier

    return _around(overlap, "common_rows", inverted)


def nothing_shared(*, forward: bool, backward: bool) -> Mutation:
    def none(original: Any, rows: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        mask, earlier = original(rows, previous)
        return torch.zeros_like(mask) if forward else mask, torch.zeros_like(earlier) if backward else earlier

    return _around(overlap, "common_rows", none)


def compared_place_by_place() -> Mutation:
    """Only ids at the same place of both batches count as shared."""

    def placed(original: Any, rows: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        common = min(len(rows), len(previous))
        same = rows[:common] == previous[:common]
        return _padded(same, len(rows)), _padded(same, len(previous))

    return _around(overlap, "common_rows", placed)


def _padded(mask: Tensor, length: int) -> Tensor:
    return torch.cat([mask, mask.new_zeros(length - len(mask))])


def masks_in_wrong_order() -> Mutation:
    """The trainer takes the mask of the batch for that of the batch before, and the reverse."""

    def swapped(original: Any, received: Tensor, splits: list[list[int]]) -> list[Tensor]:
        half = len(splits) // 2
        return original(received, [*splits[half:], *splits[:half]])

    return _around(masks, "unpack", swapped)


def ends_swapped() -> Mutation:
    """The trainer takes OL for NOL, and the owner does not."""
    original = TrainerSplit.of

    def swapped(*arguments: Any) -> TrainerSplit:
        split = original(*arguments)
        return TrainerSplit(split.nol, split.ol)

    return mock.patch.object(TrainerSplit, "of", swapped)


# --- time of the fused optimizer


def gradients_at_present_time() -> Mutation:
    return _around(parted, "at", lambda original, tables, times: nullcontext())


def rates_not_restored() -> Mutation:
    """After a deferred gradient the tables keep the time of its batch."""

    @contextmanager
    def left(original: Any, tables: Tables, times: list[TableTime]) -> Iterator[None]:
        with original(tables, times):
            yield
        for table, time in zip(tables, times, strict=True):
            table.set_learning_rate(time.learning_rate)

    return _around(parted, "at", left)


def lookups_count_as_iterations() -> Mutation:
    return _around(parted, "uncounted", lambda original, tables: nullcontext())


def iterations_not_counted() -> Mutation:
    return _around(parted, "advance", lambda original, tables: parted.times_of(tables))


# --- flush


def no_flush() -> Mutation:
    return _method(Executor, "flush", lambda original, executor: None)


def flush_skips(stage: str) -> Mutation:
    def without(original: Any, executor: Executor) -> list[tuple[Stage, int]]:
        return [(late, batch) for late, batch in original(executor) if late.name != stage]

    return _method(Executor, "_late_stages", without)


def flush_forgets() -> Mutation:
    """A flush takes note of what is late, and does not do it."""

    def noted(original: Any, executor: Executor) -> None:
        executor._done |= {(batch, stage.name) for stage, batch in executor._late_stages()}

    return _method(Executor, "flush", noted)


def flush_repeats() -> Mutation:
    """A flush does everything twice."""

    def twice(original: Any, executor: Executor) -> None:
        done = set(executor._done)
        original(executor)
        executor._done = done
        original(executor)

    return _method(Executor, "flush", twice)


def stale_lookups_after_loading() -> Mutation:
    return _method(Executor, "look_up_again", lambda original, executor: None)


# --- dense part


def dense_step_left_out() -> Mutation:
    return _method(DenseStages, "optimizer", lambda original, stages, inputs: inputs("dense_allreduce") and None)


def dense_gradients_divided() -> Mutation:
    """A division where DDP multiplies by the reciprocal: another last bit on three ranks."""

    def accumulating(original: Any, hook: DenseAllReduce, parameter: object, gradient: Tensor) -> None:
        hook._accumulating = True

    return _method(DenseAllReduce, "_before_accumulation", accumulating)


def dense_gradients_summed() -> Mutation:
    """The sum over ranks where DDP takes the mean."""

    def undivided(original: Any, runtime: Runtime, name: object, group: dist.ProcessGroup, gradient: Tensor) -> Any:
        return original(runtime, name, group, gradient.mul_(group.size()))

    return _method(Runtime, "all_reduce_beside", undivided)


def weight_gradients_left_out() -> Mutation:
    """What backward has left for later is never computed."""
    return _method(SplitBackward, "weight_gradients", lambda original, split, poll: split._factors.clear())


def weight_gradients_twice() -> Mutation:
    """Computed by backward, and once more afterwards."""

    def whole(original: Any, split: SplitBackward, graph: Graph, embeddings: list[Tensor]) -> None:
        with mock.patch.object(torch.autograd, "backward", partial(_without_inputs, torch.autograd.backward)):
            original(split, graph, embeddings)

    return _method(SplitBackward, "to_embeddings", whole)


def _without_inputs(original: Any, loss: Tensor, inputs: object = None) -> None:
    original(loss)


def bias_gradients_left_out() -> Mutation:
    """Only weights get what backward has left for later."""
    return _around(
        split_backward, "_product", lambda original, factors, *leaves: original(replace(factors, bias=None), *leaves)
    )


def split_too_early() -> Mutation:
    """Before DDP has laid out its buckets: another order of sums on three ranks."""
    return mock.patch.object(SplitBackward, "_may_split", True)


# --- runtimes


def transfer_left_alone() -> Mutation:
    """On CUDA no lane waits for a collective that was issued on it."""

    def left(original: Any, runtime: CudaRuntime, pending: Any) -> None:
        pending.flight.end = runtime.moment()

    return _method(CudaRuntime, "start", left)


def no_wait_on_the_host() -> Mutation:
    return _method(CpuRuntime, "fence", lambda original, runtime, lane, output: None)


def done_before_the_work() -> Mutation:
    """The event that says that a stage is done is recorded when it begins."""
    entered: list[Any] = []

    @contextmanager
    def entering(original: Any, runtime: CudaRuntime, lane: Lane) -> Iterator[None]:
        with original(runtime, lane):
            entered.append(runtime.moment())
            yield

    def early(original: Any, runtime: CudaRuntime, lane: Lane, value: Any) -> Output:
        return replace(original(runtime, lane, value), done=entered[-1])

    @contextmanager
    def both() -> Iterator[None]:
        with _method(CudaRuntime, "lane", entering), _method(CudaRuntime, "finish", early):
            yield

    return both()


def everything_on_one_stream() -> Mutation:
    return _method(CudaRuntime, "lane", lambda original, runtime, lane: original(runtime, Lane.COMPUTE))


def lanes_share_a_stream() -> Mutation:
    def shared(original: Any, runtime: CudaRuntime, lane: Lane) -> Any:
        return original(runtime, Lane.PRIORITY if lane is Lane.BACKGROUND else lane)

    return _method(CudaRuntime, "lane", shared)


def hidden_tensors_forgotten() -> Mutation:
    """Tensors inside dataclasses are not recorded."""
    return _around(cuda, "tensors_in", lambda original, value: original(value) if isinstance(value, list) else ())


def dropped_a_step_early() -> Mutation:
    """Outputs are forgotten one step before their last reader."""

    def hurried(original: Any, executor: Executor) -> None:
        executor.step += 1
        original(executor)
        executor.step -= 1

    return _method(Executor, "_forget", hurried)
