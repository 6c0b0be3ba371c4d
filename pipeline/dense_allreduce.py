"""The all-reduce of the dense gradients, made visible: DDP starts it, this hook measures it."""

import logging
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.model_parallel import DistributedModelParallel

from pipeline.report import CollectiveName
from pipeline.runtime import Runtime
from pipeline.timeline import Flight

logger = logging.getLogger(__name__)


class DenseAllReduce:
    """Starts DDP's bucket all-reduces through the runtime, with DDP's own arithmetic.

    DDP waits for its buckets at the end of backward, after its last hook: the time from there to the end of backward
    is what the compute lane waits.
    """

    def __init__(self, ddp: DistributedDataParallel, runtime: Runtime) -> None:
        """Take the place of DDP's default all-reduce. Raises RuntimeError if DDP already has a hook."""
        self._runtime = runtime
        self._group: dist.ProcessGroup = ddp.process_group
        self._flights: list[Flight[Any]] = []
        self._compute_ended: Any = None
        self._accumulating = False
        if self._group.size() & (self._group.size() - 1):
            for parameter in ddp.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(  # type: ignore[no-untyped-call]
                        partial(self._before_accumulation, parameter)
                    )
        ddp.register_comm_hook(None, self._hook)

    def backward_ended(self) -> None:
        """Call it right after backward."""
        if self._flights and self._compute_ended is not None:
            self._runtime.waited(self._flights, self._compute_ended, self._runtime.moment())
        self._flights, self._compute_ended = [], None

    def _hook(self, _: object, bucket: torch._C._distributed_c10d.GradBucket) -> torch.futures.Future[torch.Tensor]:
        # DDP multiplies new gradients by the reciprocal and divides accumulated ones, which differs in the last bit
        # unless the number of ranks is a power of two.
        gradient = bucket.buffer()
        gradient = gradient.div_(self._group.size()) if self._accumulating else gradient.mul_(1.0 / self._group.size())
        pending = self._runtime.all_reduce_beside(CollectiveName.DENSE_ALLREDUCE, self._group, gradient)
        self._flights.append(pending.flight)
        if bucket.is_last():
            # Queued before DDP queues its own final wait, so it runs when the gradients are there and the wait begins.
            torch.autograd.Variable._execution_engine.queue_callback(self._mark)
        return pending.work.get_future().then(lambda future: future.value()[0])

    def _before_accumulation(self, parameter: nn.Parameter, _: torch.Tensor) -> None:
        self._accumulating = parameter.grad is not None

    def _mark(self) -> None:
        self._compute_ended = self._runtime.moment()


def measure_dense_allreduce(model: nn.Module, runtime: Runtime) -> DenseAllReduce | None:
    """Hook into the DDP around the dense part of the model.

    None where nothing is data parallel, or where DDP already has a hook of the user's: it stays, and is not measured.
    """
    inner = model._dmp_wrapped_module if isinstance(model, DistributedModelParallel) else model
    if not isinstance(inner, DistributedDataParallel):
        return None
    if inner._comm_hooks:
        logger.warning("DDP already has a communication hook; dense_allreduce will not be measured")
        return None
    return DenseAllReduce(inner, runtime)
