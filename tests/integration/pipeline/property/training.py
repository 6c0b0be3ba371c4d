"""The two trainings that are compared: plain synchronous TorchRec and the pipeline, driven by one loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pipeline import TrainPipeline
from pipeline.errors import UnevenData
from tests.integration.pipeline.property.case import Action, Case
from tests.integration.pipeline.property.data import HELD_OUT, Batch, batch, batches
from tests.integration.pipeline.property.model import build
from tests.integration.pipeline.property.state import Tensors, state


@dataclass(frozen=True)
class Trained:
    """All outputs in order, those of evaluations included, and the state at the end."""

    outputs: list[torch.Tensor]
    state: Tensors


class Loop(ABC):
    """A training loop over the model of a case."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        self.model, self.optimizer = build(case, device)
        self.saved = self.weights()

    @abstractmethod
    def step(self, source: Iterator[Batch]) -> torch.Tensor:
        """Train one batch; returns the model's output."""

    @abstractmethod
    def end_epoch(self, source: Iterator[Batch]) -> None:
        """Called when all ranks have trained what all of them have."""

    @abstractmethod
    def flush(self) -> None:
        """Afterwards nothing may be deferred."""

    def train_plainly(self, data: Batch) -> torch.Tensor:
        """Forward, backward, step."""
        self.optimizer.zero_grad()
        losses, output = self.model(data.to(self.device))
        torch.sum(losses, dim=0).backward()
        self.optimizer.step()
        found: torch.Tensor = output
        return found

    def by_hand(self, data: Batch) -> torch.Tensor:
        """Train a batch that is not the pipeline's."""
        return self.train_plainly(data)

    def weights(self) -> dict[str, Any]:
        return deepcopy(self.model.state_dict())

    def set_rate(self, step: int) -> None:
        rates = self.case.fused.rates
        if len(rates) == 1:
            return
        for group in self.model.fused_optimizer.param_groups:
            group["lr"] = rates[step % len(rates)]
        self.model.fused_optimizer.step()

    def held_out(self, step: int) -> Batch:
        return batch(self.case, HELD_OUT + 2 * step, dist.get_rank())

    def evaluate(self, step: int) -> torch.Tensor:
        """On data of its own, so that no training batch is consumed."""
        self.model.eval()
        with torch.no_grad():
            output: torch.Tensor = self.model(self.held_out(step).to(self.device))[1]
        self.model.train()
        return output


class PlainLoop(Loop):
    """DistributedModelParallel, forward, backward, step."""

    def step(self, source: Iterator[Batch]) -> torch.Tensor:
        return self.train_plainly(next(source))

    def end_epoch(self, source: Iterator[Batch]) -> None:
        pass

    def flush(self) -> None:
        pass


class PipelineLoop(Loop):
    """The same by the pipeline."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__(case, device)
        self.pipe: TrainPipeline[Batch, torch.Tensor] = TrainPipeline(
            self.model, self.optimizer, device, schedule=case.schedule
        )

    def step(self, source: Iterator[Batch]) -> torch.Tensor:
        return self.pipe.progress(source)

    def end_epoch(self, source: Iterator[Batch]) -> None:
        """The data must end here, with an error where some ranks have more of it."""
        try:
            self.pipe.progress(source)
        except (StopIteration, UnevenData):
            return
        raise AssertionError("the pipeline trained a batch that not all ranks have")

    def flush(self) -> None:
        self.pipe.flush()

    def by_hand(self, data: Batch) -> torch.Tensor:
        self.pipe.detach()
        output = self.train_plainly(data)
        self.pipe.attach()
        return output


def train(case: Case, loop: Loop, stepped: Callable[[], None]) -> Trained:
    """All epochs of a case. `stepped` is called after each step."""
    outputs, step = [], 0
    for epoch in range(len(case.stream.epochs)):
        source = batches(case, epoch, dist.get_rank())
        for _ in range(case.steps_of(epoch)):
            loop.set_rate(step)
            outputs.append(loop.step(source))
            stepped()
            outputs.extend(act(case, loop, step))
            step += 1
        loop.end_epoch(source)
    loop.flush()
    return Trained(outputs, state(loop.model, loop.optimizer))


def act(case: Case, loop: Loop, step: int) -> Iterator[torch.Tensor]:
    """What the case does after a step; yields the outputs of evaluations."""
    for after, action in case.stream.actions:
        if after != step:
            continue
        loop.flush()
        match action:
            case Action.FLUSH:
                pass
            case Action.EVALUATE:
                yield loop.evaluate(step)
            case Action.SAVE:
                loop.saved = loop.weights()
            case Action.LOAD:
                # A copy, since TorchRec's hooks rename the keys of what they are given.
                loop.model.load_state_dict(deepcopy(loop.saved))
            case Action.BY_HAND:
                yield loop.by_hand(loop.held_out(step))
