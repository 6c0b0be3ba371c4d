"""What some of TorchRec's pipelines need on a CPU: they ask for CUDA events and for streams, which a CPU does not have.

Their arithmetic is left alone. `TrainPipelinePEC` is not exact: it does not divide the gradients of embeddings by the
world size, and with several features it applies gradients to the wrong rows. Its step time is measured all the same.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import nn

CPU = torch.device("cpu")


class NoEvent:
    """On a CPU everything happens in the order in which it is issued."""

    def record(self, _: object = None) -> None:
        """Nothing happens later than here."""


class NoStream:
    """The one order there is."""

    device = CPU

    def wait_stream(self, _: object) -> None:
        """There is no other."""

    def wait_event(self, _: object) -> None:
        """Nothing is to be waited for."""

    def record_event(self) -> NoEvent:
        """Everything up to here is done."""
        return NoEvent()


_STREAM = NoStream()


class OnCpu:
    """A pipeline of TorchRec's; the stand-ins are in place only while it runs."""

    def __init__(self, pipeline: Callable[..., Any], model: nn.Module, optimizer: Any) -> None:
        with _standins():
            self._pipeline = pipeline(model, optimizer, CPU)

    def progress(self, batches: Iterator[Any]) -> Any:
        """Train one batch. Raises what TorchRec raises where the stand-ins do not suffice."""
        with _standins():
            return self._pipeline.progress(batches)


def _standins() -> ExitStack:
    stack = ExitStack()
    stack.enter_context(mock.patch.object(torch.cuda, "Event", NoEvent))
    # A module on no stream of its own asks for the one of CUDA.
    for place in (torch.cpu, torch.cuda):
        stack.enter_context(mock.patch.object(place, "current_stream", _the_stream))
    stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", _record_nothing))
    return stack


def _the_stream(*_: object) -> NoStream:
    return _STREAM


def _record_nothing(*_: object) -> None:
    """Memory of a CPU is not handed out again while somebody refers to it."""
