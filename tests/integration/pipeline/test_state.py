"""State between steps: checkpoints taken and loaded, detaching, iteration counts, gradients that add up, failures."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel

from pipeline import TrainPipeline
from pipeline.errors import PendingGradients, PipelineError
from pipeline.tables import table_batches
from tests.integration.pipeline.reference import Batch, Case, batches, build, differences, state
from tests.integration.pipeline.test_behaviour import plain_steps, start
from tests.ranks import RankPool

SCHEDULES = ["sync", "sparse_dist", "prioritized"]


def iterations(model: nn.Module) -> list[tuple[int, int]]:
    lookups = [lookup for module in model.modules() for lookup in getattr(module, "_lookups", [])]
    tables = [table for lookup in lookups for table in table_batches(lookup)]
    return [(int(table.iter.item()), int(table.iter_cpu.item())) for table in tables]


def count_iterations(device: torch.device, schedule: str) -> list[bool]:
    case = Case(steps=5)
    plain, plain_optimizer = build(case, device)
    pipe, model, _ = start(case, device, schedule)
    source, equal = batches(case, dist.get_rank()), []
    for _ in plain_steps(plain, plain_optimizer, batches(case, dist.get_rank())):
        pipe.progress(source)
        equal.append(iterations(model) == iterations(plain))
    pipe.flush()
    return [*equal, iterations(model) == iterations(plain), iterations(model)[0][0] == case.steps]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_fused_optimizers_count_the_iterations_of_plain_training(ranks: RankPool, schedule: str) -> None:
    """Adam and its kin correct their bias by this count; lookups of the schedule's own must not add to it."""
    for found in ranks.run(2, count_iterations, schedule=schedule):
        assert found == [True] * 7


def load_between_steps(device: torch.device, schedule: str) -> dict[str, Any]:
    """Go back to the weights of step 2 after step 4, with the data going on; plainly and by the pipeline."""
    case = Case(steps=8)
    plain, plain_optimizer = build(case, device)
    saved: dict[str, Any] = {}
    for step in plain_steps(plain, plain_optimizer, batches(case, dist.get_rank())):
        _save_and_load(step, saved, plain)
    pipe, model, optimizer = start(case, device, schedule)
    source, saved, refused = batches(case, dist.get_rank()), {}, 0
    for step in range(case.steps):
        pipe.progress(source)
        if step in (1, 3):
            try:
                model.state_dict()
            except PendingGradients:
                refused += 1
            pipe.flush()
        _save_and_load(step, saved, model)
    pipe.flush()
    return {"refused": refused, "differences": differences(state(plain, plain_optimizer), state(model, optimizer))}


def _save_and_load(step: int, saved: dict[str, Any], model: DistributedModelParallel) -> None:
    if step == 1:
        saved.update({name: _copied(value) for name, value in model.state_dict().items()})
    if step == 3:
        model.load_state_dict(saved)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    copy = value.clone()
    for mine, theirs in zip(copy.local_shards(), value.local_shards(), strict=True):
        mine.tensor = theirs.tensor.detach().clone()
    return copy


@pytest.mark.parametrize(("schedule", "refused"), [("sync", 0), ("sparse_dist", 0), ("prioritized", 2)])
def test_weights_loaded_between_steps_are_the_ones_looked_up(ranks: RankPool, schedule: str, refused: int) -> None:
    for found in ranks.run(2, load_between_steps, schedule=schedule):
        assert found == {"refused": refused, "differences": []}


def detach_and_attach(device: torch.device, schedule: str) -> list[str]:
    """Detach after two steps, train one batch plainly in between, go on."""
    case, between = Case(steps=6), next(batches(Case(seed=5), dist.get_rank()))
    plain, plain_optimizer = build(case, device)
    for step in plain_steps(plain, plain_optimizer, batches(case, dist.get_rank())):
        if step == 1:
            _train_plainly(plain, plain_optimizer, between)
    pipe, model, optimizer = start(case, device, schedule)
    source = batches(case, dist.get_rank())
    for step in range(case.steps):
        pipe.progress(source)
        if step == 1:
            pipe.detach()
            _train_plainly(model, optimizer, between)
            pipe.attach()
    pipe.flush()
    return differences(state(plain, plain_optimizer), state(model, optimizer))


def _train_plainly(model: DistributedModelParallel, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    optimizer.zero_grad()
    loss, _ = model(batch)
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_training_goes_on_after_detach_and_attach(ranks: RankPool, schedule: str) -> None:
    assert ranks.run(2, detach_and_attach, schedule=schedule) == [[], []]


class EveryOther(torch.optim.Adam):
    """Gradient accumulation as users write it: two backward passes add up before each step."""

    calls = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.calls % 2 == 0:
            super().zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.calls += 1
        if self.calls % 2 == 0:
            super().step(closure)


def accumulate(device: torch.device, schedule: str) -> list[str]:
    case = Case(steps=7)
    plain, _ = build(case, device)
    plain_optimizer = EveryOther(_dense(plain), lr=0.01)
    list(plain_steps(plain, plain_optimizer, batches(case, dist.get_rank())))
    model, _ = build(case, device)
    optimizer = EveryOther(_dense(model), lr=0.01)
    pipe: TrainPipeline[Batch, torch.Tensor] = TrainPipeline(model, optimizer, device, schedule=schedule)
    source = batches(case, dist.get_rank())
    for _ in range(case.steps):
        pipe.progress(source)
    pipe.flush()
    return differences(state(plain, plain_optimizer), state(model, optimizer))


def _dense(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if "collections" not in name]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("schedule", ["sync", "prioritized"])
def test_dense_gradients_may_add_up_over_steps(ranks: RankPool, schedule: str, world_size: int) -> None:
    """Three ranks matter: DDP divides accumulated gradients but multiplies new ones, which differs in the last bit."""
    assert ranks.run(world_size, accumulate, schedule=schedule) == [[]] * world_size


def fail_in_a_step(device: torch.device) -> str:
    case = Case(steps=4)
    pipe, _, optimizer = start(case, device, "prioritized")
    source = batches(case, dist.get_rank())
    pipe.progress(source)

    def broken() -> None:
        raise ArithmeticError("the optimizer is broken")

    optimizer.step = broken  # type: ignore[assignment]
    with pytest.raises(ArithmeticError):
        pipe.progress(source)
    with pytest.raises(PipelineError) as refused:
        pipe.progress(source)
    with pytest.raises(PipelineError):
        pipe.flush()
    return f"{refused.value} / {refused.value.__cause__}"


def test_a_failed_step_is_not_built_upon(ranks: RankPool) -> None:
    for found in ranks.run(2, fail_in_a_step):
        assert "an earlier step failed" in found
        assert found.endswith("/ the optimizer is broken")
