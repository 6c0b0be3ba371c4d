"""The all-reduce of the dense gradients as a stage of its own: DDP starts it, the schedule says who waits for it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.model_parallel import DistributedModelParallel

from pipeline.report import CollectiveName
from pipeline.runtime import Runtime
from pipeline.runtime.base import Pending

logger = logging.getLogger(__name__)


class DenseAllReduce:
    """Starts DDP's bucket all-reduces through the runtime, with DDP's own arithmetic, while backward still computes.

    In a step of the pipeline DDP itself waits for none of them: its gradients are views of the buckets, which the
    all-reduce fills in place, so they are there once the stage that gathers them is fenced.
    """

    def __init__(self, ddp: DistributedDataParallel, runtime: Runtime) -> None:
        """Take the place of DDP's default all-reduce. Raises RuntimeError if DDP already has a hook."""
        self._runtime = runtime
        self._group: dist.ProcessGroup = ddp.process_group
        self._begun: list[Pending] = []
        self._defers = False
        self._accumulating = False
        if self._group.size() & (self._group.size() - 1):
            for parameter in ddp.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(  # type: ignore[no-untyped-call]
                        partial(self._before_accumulation, parameter)
                    )
        ddp.register_comm_hook(None, self._hook)

    @contextmanager
    def begun_only(self) -> Iterator[None]:
        """A backward in here does not wait for what it begins, until `gather`. Any other does, a step by hand say."""
        self._defers = True
        try:
            yield
        finally:
            self._defers = False

    def gather(self) -> None:
        """Hand what those backwards have begun to the present stage."""
        begun, self._begun = self._begun, []
        self._runtime.gather(begun)

    def _hook(self, _: object, bucket: torch._C._distributed_c10d.GradBucket) -> torch.futures.Future[torch.Tensor]:
        # DDP multiplies new gradients by the reciprocal and divides accumulated ones, which differs in the last bit
        # unless the number of ranks is a power of two.
        gradient = bucket.buffer()
        gradient = gradient.div_(self._group.size()) if self._accumulating else gradient.mul_(1.0 / self._group.size())
        pending = self._runtime.all_reduce_beside(CollectiveName.DENSE_ALLREDUCE, self._group, gradient)
        if not self._defers:
            return pending.work.get_future().then(lambda future: future.value()[0])
        self._begun.append(pending)
        ready: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        ready.set_result(gradient)
        return ready

    def _before_accumulation(self, parameter: nn.Parameter, _: torch.Tensor) -> None:
        self._accumulating = parameter.grad is not None


def ddp_of(model: nn.Module) -> DistributedDataParallel | None:
    """The DDP around the dense part of the model; None where nothing is data parallel."""
    inner = model._dmp_wrapped_module if isinstance(model, DistributedModelParallel) else model
    return inner if isinstance(inner, DistributedDataParallel) else None


def take_over_dense_allreduce(model: nn.Module, runtime: Runtime) -> DenseAllReduce | None:
    """Hook into the DDP around the dense part of the model.

    None where nothing is data parallel, and where DDP must wait for its all-reduce itself, which is then not measured:
    it already has a hook of the user's, or it copies gradients between its buckets and the parameters.
    """
    ddp = ddp_of(model)
    if ddp is None:
        return None
    if ddp._comm_hooks:
        logger.warning("DDP already has a communication hook; dense_allreduce is left to it and not measured")
        return None
    if not ddp.gradient_as_bucket_view:
        logger.warning("dense_allreduce is left to DDP and not measured; wrap with gradient_as_bucket_view=True")
        return None
    return DenseAllReduce(ddp, runtime)
