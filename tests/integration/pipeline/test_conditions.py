"""Models that do not use every embedding in every step, with an optimizer that would move rows by a zero gradient."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

from pipeline import TrainPipeline, sharders
from pipeline.errors import UnsupportedModel
from tests.integration.pipeline.reference import Batch, Case, Model, Table, batches, differences, plan_for, state
from tests.integration.pipeline.test_state import iterations
from tests.ranks import RankPool

CASE = Case(collections=((Table(30, ("a", "b")),), (Table(20, ("c",)),)), steps=8)


@dataclass(frozen=True)
class Use:
    """In which steps the model calls its second collection, and in which the loss depends on it."""

    called: tuple[bool, ...] = (True,) * 8
    in_loss: tuple[bool, ...] = (True,) * 8


class Choosy(Model):
    """Calls its second collection, and lets the loss depend on it, only when told so."""

    calls_second = True
    loss_sees_second = True

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        found = [self.collections[0](batch.ids)]
        if self.calls_second:
            second = self.collections[1](batch.ids)
            if self.loss_sees_second:
                found.append(second)
        return self.head(found, batch.dense)


class Twice(Model):
    """Calls one collection twice."""

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head([self.collections[0](batch.ids), self.collections[0](batch.ids)], batch.dense)


def build(kind: type[Model], device: torch.device) -> tuple[Model, DistributedModelParallel, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = kind(CASE)
    own = sharders(
        fused_params={
            "optimizer": CASE.optimizer,
            "learning_rate": 0.1,
            "weight_decay": 0.05,
            "weight_decay_mode": WeightDecayMode.L2,
        }
    )
    group = dist.group.WORLD
    assert group is not None
    sharded = DistributedModelParallel(
        model, env=ShardingEnv.from_process_group(group), device=device, plan=plan_for(model, CASE, own), sharders=own
    )
    dense = [parameter for name, parameter in sharded.named_parameters() if "collections" not in name]
    return _inner(sharded), sharded, torch.optim.SGD(dense, lr=0.01)


def _inner(sharded: nn.Module) -> Any:
    return next(module for module in sharded.modules() if isinstance(module, Model))


def compare(device: torch.device, use: Use, schedule: str) -> dict[str, Any]:
    chooser, plain, plain_optimizer = build(Choosy, device)
    for step, batch in enumerate(batches(CASE, dist.get_rank())):
        chooser.calls_second, chooser.loss_sees_second = use.called[step], use.in_loss[step]
        plain_optimizer.zero_grad()
        loss, _ = plain(batch.to(device))
        loss.backward()
        plain_optimizer.step()
    chooser, model, optimizer = build(Choosy, device)
    pipe: TrainPipeline[Batch, torch.Tensor] = TrainPipeline(model, optimizer, device, schedule=schedule)
    source = batches(CASE, dist.get_rank())
    for step in range(CASE.steps):
        chooser.calls_second, chooser.loss_sees_second = use.called[step], use.in_loss[step]
        pipe.progress(source)
    pipe.flush()
    return {
        "prioritized": len(pipe.prioritized),
        "differences": differences(state(plain, plain_optimizer), state(model, optimizer)),
        "iterations": iterations(plain) == iterations(model),
    }


@pytest.mark.parametrize("schedule", ["sync", "sparse_dist", "prioritized"])
@pytest.mark.parametrize(
    "use",
    [
        Use(),
        Use(called=(True, True, False, True, False, False, True, True)),
        Use(in_loss=(True, False, True, True, False, False, True, False)),
        Use(called=(True,) * 7 + (False,), in_loss=(False,) * 8),
    ],
    ids=["always", "sometimes called", "sometimes in the loss", "never in the loss"],
)
def test_rows_that_the_loss_does_not_use_are_left_alone(ranks: RankPool, use: Use, schedule: str) -> None:
    for found in ranks.run(2, compare, use=use, schedule=schedule):
        assert found == {"prioritized": 2, "differences": [], "iterations": True}


def call_twice(device: torch.device) -> str:
    _, model, optimizer = build(Twice, device)
    with pytest.raises(UnsupportedModel) as refused:
        TrainPipeline(model, optimizer, device)
    return str(refused.value)


def test_a_module_that_is_called_twice_is_refused(ranks: RankPool) -> None:
    [message] = ranks.run(1, call_twice)
    assert message == (
        "collections.0 is called more than once in the model's forward; give each call a module of its own"
    )
