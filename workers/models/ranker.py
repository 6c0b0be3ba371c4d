"""A ranker that attends to a sample's sequences with its single ids."""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import nn
from torchrec.datasets.utils import Batch

from workers.job import Spec, parse_section
from workers.models.ranking import Jagged, Output, output_of, perceptron, sequence_tables
from workers.sources.schema import Schema


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
        self.embeddings = sequence_tables(schema, schema.tables, dim)
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
        self.mlp = perceptron(width, hidden, 1)

    def forward(self, rows: Mapping[str, Jagged], dense: torch.Tensor, labels: torch.Tensor) -> Output:
        """`rows` by feature, `dense` of shape (n, dense features), `labels` of shape (n,)."""
        singles = [rows[name].values() for name in self._singles]
        query = self.query(torch.cat([labels.new_zeros(len(labels), 0), *singles], dim=1))
        parts = [*singles, dense]
        for name, attention in self.attention.items():
            pooled = attention(query, rows[name])
            parts += [pooled, pooled * query]
        logits = self.mlp(torch.cat(parts, dim=1)).squeeze(1)
        return output_of(logits, labels)


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
