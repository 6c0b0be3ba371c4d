"""From the data loader to ids on the rank that owns their rows."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.dist_data import KJTAllToAllSplitsAwaitable, KJTAllToAllTensorsAwaitable
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from pipeline.exchange import Exchange
from pipeline.executor import Inputs, NoMoreBatches, StageFunction
from pipeline.modules import PrioritizedModule
from pipeline.report import CollectiveName
from pipeline.runtime import Runtime


@dataclass(frozen=True)
class Copied:
    """A batch on the device (None if this rank's data has ended) and, once arrived, which ranks have one, `[ranks]`."""

    batch: Any
    present: Tensor


@dataclass(frozen=True)
class InputDist:
    """TorchRec's input dist under way: per module its context and the awaitable of the next phase."""

    contexts: list[Any]
    awaitables: list[Any]


@dataclass(frozen=True)
class Received:
    """The input dist of one batch, arrived.

    TorchRec's context per module, the exchange of each sharded group, and the features of each replicated group, which
    never leave their rank; both in the order of the modules.
    """

    contexts: list[Any]
    exchanges: list[Exchange]
    replicated: list[KeyedJaggedTensor]
    samples: int

    @property
    def ids(self) -> int:
        """Id occurrences in this rank's batch."""
        return sum(sum(exchange.trainer.splits) for exchange in self.exchanges)


class BatchStages:
    """`copy_batch`, `input_splits`, `input_dist`, `receive`."""

    def __init__(
        self,
        device: torch.device,
        modules: tuple[PrioritizedModule, ...],
        group: dist.ProcessGroup,
        runtime: Runtime,
        source: Callable[[], Any],
    ) -> None:
        self._device = device
        self._modules = modules
        self._group = group
        self._runtime = runtime
        self._source = source

    def functions(self) -> dict[str, StageFunction]:
        return {
            "copy_batch": self.copy_batch,
            "input_splits": self.input_splits,
            "input_dist": self.input_dist,
            "receive": self.receive,
        }

    def copy_batch(self, inputs: Inputs) -> Copied:
        """Take the next batch and tell the other ranks whether there was one."""
        batch = self._source()
        if batch is not None:
            batch = batch.to(device=self._device, non_blocking=True)
        present = torch.zeros(self._group.size(), dtype=torch.int32, device=self._device)
        present[self._group.rank()] = batch is not None
        work = dist.all_reduce(present, group=self._group, async_op=True)
        share = 2 * (self._group.size() - 1) * present.element_size()
        self._runtime.adopt(CollectiveName.INPUT_DIST, [work], share, share)
        return Copied(batch, present)

    def input_splits(self, inputs: Inputs) -> InputDist:
        """Tell every owner how many ids will come. Raises `NoMoreBatches` unless all ranks have a batch."""
        copied: Copied = inputs("copy_batch")
        missing = [rank for rank, present in enumerate(copied.present.tolist()) if not present]
        if missing:
            raise NoMoreBatches(missing if len(missing) < self._group.size() else [])
        contexts, awaitables = [], []
        for module in self._modules:
            args, kwargs = module.forward.args.build_args_kwargs(copied.batch)
            args, kwargs = module.sharded.preprocess_input(args, kwargs)
            context = module.sharded.create_context()
            awaitable = module.sharded.input_dist(context, *args, **kwargs)
            contexts.append(context)
            awaitables.append(awaitable)
            self._adopt_splits(awaitable.awaitables)
        return InputDist(contexts, awaitables)

    def input_dist(self, inputs: Inputs) -> InputDist:
        """Send the ids to their owners."""
        splits: InputDist = inputs("input_splits")
        awaitables = [awaitable.wait() for awaitable in splits.awaitables]
        for awaitable in awaitables:
            self._adopt_tensors(awaitable.awaitables)
        return InputDist(splits.contexts, awaitables)

    def receive(self, inputs: Inputs) -> Received:
        """Bring the received ids into owner order."""
        under_way: InputDist = inputs("input_dist")
        exchanges: list[Exchange] = []
        replicated: list[KeyedJaggedTensor] = []
        samples = 0
        for module, context, awaitable in zip(self._modules, under_way.contexts, under_way.awaitables, strict=True):
            for group, sent, features in zip(module.groups, context.sharding_contexts, awaitable.wait(), strict=True):
                samples = sent.features_before_input_dist.stride()
                # TorchRec's own lookups leave this behind for whatever reads the context later.
                sent.lengths_after_input_dist = features.lengths().view(-1, features.stride())
                if group.replicated:
                    replicated.append(features)
                else:
                    exchanges.append(Exchange.of(sent, features, group.first_rows))
        return Received(under_way.contexts, exchanges, replicated, samples)

    def _adopt_splits(self, awaitables: list[Any]) -> None:
        for awaitable in awaitables:
            # A single rank sends nothing, and TorchRec then has no transfer to wait for.
            if isinstance(awaitable, KJTAllToAllSplitsAwaitable) and self._group.size() > 1:
                inner = awaitable._splits_awaitable
                share = _without_own(inner._input_tensor, [1] * self._group.size(), self._group.rank())
                self._runtime.adopt(CollectiveName.INPUT_DIST, [inner._splits_awaitable], share, share)

    def _adopt_tensors(self, awaitables: list[Any]) -> None:
        own = self._group.rank()
        for awaitable in awaitables:
            if not isinstance(awaitable, KJTAllToAllTensorsAwaitable) or self._group.size() == 1:
                continue
            for work, sent, received, sent_splits, received_splits in zip(
                awaitable._awaitables,
                awaitable._input_tensors,
                awaitable._output_tensors,
                awaitable._input_splits_list,
                awaitable._output_splits_list,
                strict=True,
            ):
                self._runtime.adopt(
                    CollectiveName.INPUT_DIST,
                    [work],
                    _without_own(sent, sent_splits, own),
                    _without_own(received, received_splits, own),
                )


def samples_of(batch: Any) -> int:
    """How many samples a batch holds: the stride of its first `KeyedJaggedTensor`, else the first tensor's length."""
    members = [getattr(batch, field.name) for field in fields(batch)] if is_dataclass(batch) else [batch]
    for member in members:
        if isinstance(member, KeyedJaggedTensor):
            return int(member.stride())
    return next((len(member) for member in members if isinstance(member, Tensor) and member.dim() > 0), 0)


def _without_own(tensor: Tensor, splits: list[int], own: int) -> int:
    """Bytes of a transfer buffer that belong to other ranks."""
    total = sum(splits)
    return tensor.numel() * tensor.element_size() * (total - splits[own]) // total if total else 0
