"""Built-in models. A factory is called as `factory(schema, **params)` and returns a module for TorchRec's pipelines:
`forward(batch)` gives `(loss, (loss, logits, labels))`, the second part detached.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from pydantic import Field, PositiveInt
from torch import nn
from torch.nn import functional
from torchrec.datasets.utils import Batch
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

from workers.job import InvalidJob, ModelSpec, Spec, parse_section
from workers.sources.schema import Schema

LossLogitsLabels = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Output = tuple[torch.Tensor, LossLogitsLabels]


class Jagged(Protocol):
    """The part of TorchRec's JaggedTensor that the models use."""

    def values(self) -> torch.Tensor:
        """Rows of all samples, one after the other."""
        ...

    def lengths(self) -> torch.Tensor:
        """Number of rows for each sample."""
        ...

    def to_padded_dense(self, desired_length: int) -> torch.Tensor:
        """Shape (samples, desired_length, dimension), zero where a sample has no row."""
        ...


def build_model(spec: ModelSpec, schema: Schema) -> nn.Module:
    """Call the factory that the job names. Raises `InvalidJob` if it cannot be imported or does not take the params."""
    module, _, name = spec.factory.partition(":")
    try:
        factory: Callable[..., nn.Module] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidJob([f"model.factory: cannot import {spec.factory!r}: {error}"]) from error
    try:
        inspect.signature(factory).bind(schema, **spec.params)
    except TypeError as error:
        raise InvalidJob([f"model.params: {spec.factory} does not take them: {error}"]) from error
    return factory(schema, **spec.params)


class RankerParams(Spec):
    """`model.params` of `sequence_ranker`. fbgemm wants an embedding dimension that is a multiple of 4."""

    embedding_dim: int = Field(default=64, ge=4, multiple_of=4)
    hidden: tuple[PositiveInt, ...] = (128, 64)


def sequence_ranker(schema: Schema, **params: Any) -> "SequenceRanker":
    """A ranker for any schema: single ids and dense features as they are, sequences through attention, then an MLP.

    `params` are those of `RankerParams`. Raises `InvalidJob` for others.
    """
    given = parse_section(RankerParams, params, at="model.params")
    return SequenceRanker(schema, given.embedding_dim, given.hidden)


class SequenceRanker(nn.Module):
    """Embeddings and head stand side by side: the batch's features go into the collection as they are, so that the
    pipeline can take the lookup out of forward and start it early.
    """

    def __init__(self, schema: Schema, dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        # On the meta device no worker ever holds a whole table: each rank fills its own shard.
        self.embeddings = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=table.name,
                    embedding_dim=dim,
                    num_embeddings=table.rows,
                    feature_names=schema.features_of(table.name),
                )
                for table in schema.tables
            ],
            device=torch.device("meta"),
        )
        self.head = RankingHead(schema, dim, hidden)

    def forward(self, batch: Batch) -> Output:
        """Loss and detached output for one batch."""
        output: Output = self.head(self.embeddings(batch.sparse_features), batch.dense_features, batch.labels)
        return output


class RankingHead(nn.Module):
    """From looked-up rows to a logit and its binary cross-entropy."""

    def __init__(self, schema: Schema, dim: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self._singles = [feature.name for feature in schema.features if feature.max_length == 1]
        sequences = [feature for feature in schema.features if feature.max_length > 1]
        self._dim = dim
        self.query = nn.Linear(len(self._singles) * dim, dim)
        self.attention = nn.ModuleDict(
            {feature.name: SequenceAttention(dim, feature.max_length) for feature in sequences}
        )
        width = (len(self._singles) + 2 * len(sequences)) * dim + schema.dense
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.mlp = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, rows: Mapping[str, Jagged], dense: torch.Tensor, labels: torch.Tensor) -> Output:
        """`rows` by feature, `dense` of shape (n, dense features), `labels` of shape (n,)."""
        singles = [rows[name].values() for name in self._singles]
        query = self.query(torch.cat([labels.new_zeros(len(labels), 0), *singles], dim=1))
        parts = [*singles, dense]
        for name, attention in self.attention.items():
            pooled = attention(query, rows[name])
            parts += [pooled, pooled * query]
        logits = self.mlp(torch.cat(parts, dim=1)).squeeze(1)
        # A mean that is 0, and not NaN, for a rank that takes part in a step with an empty batch.
        loss = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / max(1, len(labels))
        return loss, (loss.detach(), logits.detach(), labels.detach())


class SequenceAttention(nn.Module):
    """Pools a sequence by how well its rows fit the query.

    A learned row stands in front of every sequence. It gives an empty sequence something to attend to, and a full one a
    way to attend to nothing.
    """

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self._max_length = max_length
        self.nothing = nn.Parameter(torch.zeros(dim))

    def forward(self, query: torch.Tensor, sequence: Jagged) -> torch.Tensor:
        """`query` of shape (n, dim); the result has the same shape."""
        padded = sequence.to_padded_dense(self._max_length)
        padded = torch.cat([self.nothing.expand(len(query), 1, -1), padded], dim=1)
        scores = torch.einsum("nld,nd->nl", padded, query) / query.shape[1] ** 0.5
        absent = torch.arange(padded.shape[1], device=query.device) > sequence.lengths().unsqueeze(1)
        weights = scores.masked_fill(absent, float("-inf")).softmax(dim=1)
        return torch.einsum("nl,nld->nd", weights, padded)
