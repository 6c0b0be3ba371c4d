"""A DLRM: dense features through a perceptron, ids through tables, and the dot products of all their vectors.

After Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019.
"""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import nn
from torchrec.datasets.utils import Batch

from workers.job import InvalidJob, Spec, parse_section
from workers.models.ranking import Jagged, Output, output_of, perceptron, pooled_tables, sequence_tables
from workers.sources.schema import Feature, Schema, Table


class DlrmParams(Spec):
    """`model.params` of `dlrm`. `pooled` names the tables whose rows TorchRec sums up on their owner.

    Without it, these are the tables that no sequence looks up. fbgemm wants a dimension that is a multiple of 4.
    """

    embedding_dim: int = Field(default=64, ge=4, multiple_of=4)
    bottom: tuple[PositiveInt, ...] = (128,)
    top: tuple[PositiveInt, ...] = (128, 64)
    pooled: tuple[str, ...] | None = None


def dlrm(schema: Schema, **params: Any) -> "Dlrm":
    """A DLRM for any schema. `params` are those of `DlrmParams`. Raises `InvalidJob` for others and unknown tables."""
    given = parse_section(DlrmParams, params, at="model.params")
    return Dlrm(schema, _pooled(schema, given.pooled), given)


def _pooled(schema: Schema, asked: tuple[str, ...] | None) -> list[Table]:
    if asked is None:
        of_sequences = {feature.table for feature in schema.features if feature.max_length > 1}
        return [table for table in schema.tables if table.name not in of_sequences]
    known = [table.name for table in schema.tables]
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise InvalidJob([f"model.params.pooled: no table {unknown[0]!r}; the data has {', '.join(known)}"])
    return [table for table in schema.tables if table.name in asked]


class Dlrm(nn.Module):
    """Sequence tables are looked up row by row, which a schedule can prioritize; pooled ones are TorchRec's own."""

    def __init__(self, schema: Schema, pooled: list[Table], params: DlrmParams) -> None:
        super().__init__()
        names = {table.name for table in pooled}
        sequences = [table for table in schema.tables if table.name not in names]
        self.embeddings = sequence_tables(schema, sequences, params.embedding_dim) if sequences else None
        self.pooled = pooled_tables(schema, pooled, params.embedding_dim) if pooled else None
        self.head = InteractionHead(schema, names, params)

    def forward(self, batch: Batch) -> Output:
        """Loss and detached output for one batch."""
        rows = self.embeddings(batch.sparse_features) if self.embeddings is not None else None
        pooled = self.pooled(batch.sparse_features) if self.pooled is not None else None
        output: Output = self.head(rows, pooled, batch.dense_features, batch.labels)
        return output


class InteractionHead(nn.Module):
    """From the vectors of a sample to a logit and its binary cross-entropy."""

    def __init__(self, schema: Schema, pooled: set[str], params: DlrmParams) -> None:
        super().__init__()
        dim = params.embedding_dim
        self._pooled = [feature.name for feature in schema.features if feature.table in pooled]
        self._sequences: list[Feature] = [feature for feature in schema.features if feature.table not in pooled]
        self.bottom = perceptron(schema.dense, params.bottom, dim) if schema.dense else None
        vectors = len(schema.features) + bool(schema.dense)
        self._pairs = tuple(torch.tril_indices(vectors, vectors).unbind())
        self.top = perceptron(dim * bool(schema.dense) + len(self._pairs[0]), params.top, 1)

    def forward(
        self,
        rows: Mapping[str, Jagged] | None,
        pooled: Mapping[str, torch.Tensor] | None,
        dense: torch.Tensor,
        labels: torch.Tensor,
    ) -> Output:
        """`rows` and `pooled` by feature, `dense` of shape (n, dense features), `labels` of shape (n,)."""
        bottom = [self.bottom(dense)] if self.bottom is not None else []
        vectors = list(bottom)
        if pooled is not None:
            vectors += [pooled[name] for name in self._pooled]
        if rows is not None:
            vectors += [_mean(rows[feature.name], feature.max_length) for feature in self._sequences]
        stacked = torch.stack(vectors, dim=1)
        dots = torch.bmm(stacked, stacked.transpose(1, 2))[:, self._pairs[0], self._pairs[1]]
        logits = self.top(torch.cat([*bottom, dots], dim=1)).squeeze(1)
        return output_of(logits, labels)


def _mean(sequence: Jagged, max_length: int) -> torch.Tensor:
    """Shape (n, dim); zero for an empty sequence."""
    count = sequence.lengths().clamp(min=1).unsqueeze(1)
    return sequence.to_padded_dense(max_length).sum(1) / count
