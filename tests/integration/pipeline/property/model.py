"""The model of a case, sharded by the case's plan, and its dense optimizer."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection
from torchrec.optim.clipping import GradientClipping, GradientClippingOptimizer
from torchrec.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper, OptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import JaggedTensor

from tests.integration.pipeline.property.case import Case, Kind, Module, Table, Use
from tests.integration.pipeline.property.collision import collision_module
from tests.integration.pipeline.property.data import DENSE, Batch
from tests.integration.pipeline.property.plan import plan_of, sharders_of

WIDTH = 16  # embeddings are padded to this, so that one layer serves tables of every dimension
Loss = tuple[torch.Tensor, torch.Tensor]


class Model(nn.Module):
    """Calls each embedding module as its `use` says; the head makes a loss and an output of what they return."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__()
        self.uses = [module.use for module in case.modules]
        self.weighted = [module.weighted for module in case.modules]
        self.embeddings = nn.ModuleList(
            embedding_module(case, module, which, device) for which, module in enumerate(case.modules)
        )
        self.head = Head(case)

    def forward(self, batch: Batch) -> Loss:
        found: list[Any] = []
        for module, use, weighted in zip(self.embeddings, self.uses, self.weighted, strict=True):
            ids = batch.weighted if weighted else batch.ids
            called = use is not Use.NEVER and (use is not Use.IN_TRAINING or self.training)
            if use is Use.BY_BATCH and batch.step % 2:
                called = False
            if use in (Use.EVERY_OTHER, Use.AT_TIMES) and (self.head.calls % 2 == 0) != (use is Use.EVERY_OTHER):
                called = False
            found.append(module(ids) if called else None)
            if use is Use.TWICE:
                found[-1] = module(ids)
        return self.head(found, batch.dense)


class Head(nn.Module):
    """The dense part: a layer on every embedding, weighted by its place so that mistakes cannot cancel out; an MLP.

    The output holds the logits and every embedding, so that comparing outputs compares embeddings too.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.kinds = [module.kind for module in case.modules]
        self.in_loss = [module.use is not Use.NOT_IN_LOSS for module in case.modules]
        self.autocast = case.autocast
        self.losses = case.losses
        self.calls = 0  # here, where tracing the model does not count
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.over = nn.Sequential(nn.Linear(WIDTH + DENSE, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, found: list[Any], dense: torch.Tensor) -> Loss:
        self.calls += 1
        device = dense.device
        seen, place = [], 0
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.autocast):
            pooled = torch.tanh(self.mix(nn.functional.pad(dense, (0, WIDTH - DENSE)))).float()
            for embeddings, kind, in_loss in zip(found, self.kinds, self.in_loss, strict=True):
                for owner, values in _parts(embeddings, kind, dense.shape[0], device):
                    place += 1
                    seen.append(values.detach().float().flatten())
                    if in_loss:
                        padded = nn.functional.pad(values, (0, WIDTH - values.shape[1]))
                        mixed = torch.tanh(self.mix(padded.to(self.mix.weight.dtype))).float() * place
                        pooled = pooled.index_add(0, owner, mixed)
            logits = self.over(torch.cat([pooled, dense], 1)).squeeze(1).float()
        squares = (logits - dense[:, 0]).square()
        losses = torch.stack([squares.sum() / (8 + which) for which in range(self.losses)])
        return losses, torch.cat([logits.detach(), losses.detach(), *seen])


def _parts(embeddings: Any, kind: Kind, samples: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Per feature: which sample each embedding belongs to, `[n]`, and the embeddings, `[n, dim]`."""
    everyone = torch.arange(samples, device=device)
    if embeddings is None:
        return []
    if kind is Kind.POOLED:
        return [(everyone, values) for values in embeddings.to_dict().values()]
    jagged: dict[str, JaggedTensor] = embeddings[0] if kind is Kind.COLLISION else embeddings
    return [(torch.repeat_interleave(everyone, each.lengths().long()), each.values()) for each in jagged.values()]


def embedding_module(case: Case, module: Module, which: int, device: torch.device) -> nn.Module:
    """The unsharded TorchRec module."""
    match module.kind:
        case Kind.POOLED:
            bags = [_config(EmbeddingBagConfig, which, place, table) for place, table in enumerate(module.tables)]
            return EmbeddingBagCollection(tables=bags, is_weighted=module.weighted, device=device)
        case Kind.SEQUENCE:
            return _sequence(module, which, device)
        case Kind.WRAPPED:
            return PECEmbeddingCollection(_sequence(module, which, device))
        case Kind.COLLISION:
            return collision_module(_sequence(module, which, device), module.tables[0], device)


def _sequence(module: Module, which: int, device: torch.device) -> EmbeddingCollection:
    configs = [_config(EmbeddingConfig, which, place, table) for place, table in enumerate(module.tables)]
    return EmbeddingCollection(tables=configs, device=device)


def _config(make: type, which: int, place: int, table: Table) -> Any:
    pooling = {"pooling": PoolingType.MEAN} if make is EmbeddingBagConfig and table.mean else {}
    return make(
        name=f"table_{which}_{place}",
        num_embeddings=table.rows,
        embedding_dim=table.dim,
        feature_names=list(table.features),
        data_type=DataType[table.data_type.name],
        **pooling,
    )


def build(case: Case, device: torch.device) -> tuple[DistributedModelParallel, KeyedOptimizer]:
    """The sharded model and the optimizer of its dense part, the same on every call."""
    torch.manual_seed(case.seed)
    model = Model(case, device)
    own = sharders_of(case)
    group = dist.group.WORLD
    assert group is not None
    plan = ShardingPlan(
        {
            f"embeddings.{which}": plan_of(module, model.embeddings[which], own, device)
            for which, module in enumerate(case.modules)
        }
    )
    env = ShardingEnv.from_process_group(group)
    sharded = DistributedModelParallel(model, env=env, device=device, plan=plan, sharders=own)
    return sharded, dense_optimizer(case, sharded)


class EveryNth(OptimizerWrapper):
    """Gathers the gradients of n batches before it lets the optimizer step."""

    def __init__(self, optimizer: KeyedOptimizer, every: int) -> None:
        super().__init__(optimizer)
        self._every = every
        self._gathered = 0

    def zero_grad(self, set_to_none: bool = False) -> None:
        if self._gathered == 0:
            super().zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self._gathered = (self._gathered + 1) % self._every
        if self._gathered == 0:
            super().step(closure)


def dense_optimizer(case: Case, model: DistributedModelParallel) -> KeyedOptimizer:
    """Adam over everything that no fused optimizer updates: the head and the data-parallel tables.

    Its epsilon is large, since some tables are FP16, where a small one is zero.
    """
    dense = dict(in_backward_optimizer_filter(model.named_parameters()))
    optimizer: KeyedOptimizer = KeyedOptimizerWrapper(dense, partial(torch.optim.Adam, lr=0.01, eps=1e-3))
    if case.clip:
        optimizer = GradientClippingOptimizer(
            optimizer, clipping=GradientClipping.NORM, max_gradient=0.5, enable_global_grad_clip=True
        )
    return EveryNth(optimizer, case.accumulate) if case.accumulate > 1 else optimizer
