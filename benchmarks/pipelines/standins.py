"""What TorchRec's `TrainPipelinePEC` needs on a CPU: it asks for CUDA events and streams, which a CPU does not have.

Its arithmetic is left alone. It is not exact: it does not divide the gradients of embeddings by the world size, and
with several features it applies gradients to the wrong rows. Its step time is measured all the same.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import nn
from torchrec.distributed.train_pipeline.pec_train_pipeline import TrainPipelinePEC


class NoEvent:
    """On a CPU everything happens in the order in which it is issued."""

    def record(self, _: object = None) -> None:
        """Nothing happens later than here."""


class NoStream:
    """The one order there is."""

    def wait_event(self, _: NoEvent) -> None:
        """Nothing is to be waited for."""


class PecOnCpu:
    """TorchRec's pipeline; the stand-ins are in place only while it runs."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        with _standins():
            self._pipeline = TrainPipelinePEC(model, optimizer, torch.device("cpu"))

    def progress(self, batches: Iterator[Any]) -> Any:
        """Train one batch. Raises what TorchRec raises where the stand-ins do not suffice."""
        with _standins():
            return self._pipeline.progress(batches)


def _standins() -> ExitStack:
    stack = ExitStack()
    stack.enter_context(mock.patch.object(torch.cuda, "Event", NoEvent))
    stack.enter_context(mock.patch.object(torch.cpu, "current_stream", NoStream))
    stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", _record_nothing))
    return stack


def _record_nothing(*_: object) -> None:
    """Memory of a CPU is not handed out again while somebody refers to it."""
