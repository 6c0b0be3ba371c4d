"""A small sequence model in the manner of HSTU: a sample's history, its candidate behind it, and gated attention.

After Zhai et al., "Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative
Recommendations", 2024: attention weights by SiLU instead of softmax, a bias by distance, and an output gate.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import nn
from torch.nn import functional
from torchrec.datasets.utils import Batch

from workers.job import InvalidJob, Spec, parse_section
from workers.models.ranking import Jagged, Output, output_of, perceptron, sequence_tables
from workers.sources.schema import Schema


class HstuParams(Spec):
    """`model.params` of `hstu`. fbgemm wants an embedding dimension that is a multiple of 4."""

    embedding_dim: int = Field(default=64, ge=4, multiple_of=4)
    layers: int = Field(default=2, ge=1)
    heads: int = Field(default=2, ge=1)
    hidden: tuple[PositiveInt, ...] = (64,)

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.embedding_dim % self.heads:
            raise ValueError(f"heads: {self.heads} do not divide embedding_dim {self.embedding_dim}")
        return self


def hstu(schema: Schema, **params: Any) -> "Hstu":
    """A sequence model for a schema with at least one sequence; single ids and dense features make up the candidate.

    `params` are those of `HstuParams`. Raises `InvalidJob` for others, and for data without a sequence.
    """
    given = parse_section(HstuParams, params, at="model.params")
    if all(feature.max_length == 1 for feature in schema.features):
        raise InvalidJob(
            ["model.factory: hstu needs a sequence, and the data has single ids only; use sequence_ranker"]
        )
    return Hstu(schema, given)


class Hstu(nn.Module):
    """Embeddings and head stand side by side, so that the pipeline can start the lookup early."""

    def __init__(self, schema: Schema, params: HstuParams) -> None:
        super().__init__()
        self.embeddings = sequence_tables(schema, schema.tables, params.embedding_dim)
        self.head = TransducerHead(schema, params)

    def forward(self, batch: Batch) -> Output:
        """Loss and detached output for one batch."""
        output: Output = self.head(self.embeddings(batch.sparse_features), batch.dense_features, batch.labels)
        return output


class TransducerHead(nn.Module):
    """From looked-up rows to a logit and its binary cross-entropy."""

    def __init__(self, schema: Schema, params: HstuParams) -> None:
        super().__init__()
        dim = params.embedding_dim
        self._singles = [feature.name for feature in schema.features if feature.max_length == 1]
        self._sequences = [feature for feature in schema.features if feature.max_length > 1]
        self.candidate = nn.Linear(len(self._singles) * dim + schema.dense, dim)
        self.kind = nn.Parameter(torch.zeros(len(self._sequences), dim))
        length = sum(feature.max_length for feature in self._sequences) + 1
        self.layers = nn.ModuleList(GatedAttention(dim, params.heads, length) for _ in range(params.layers))
        self.mlp = perceptron(dim, params.hidden, 1)

    def forward(self, rows: Mapping[str, Jagged], dense: torch.Tensor, labels: torch.Tensor) -> Output:
        """`rows` by feature, `dense` of shape (n, dense features), `labels` of shape (n,)."""
        singles = [rows[name].values() for name in self._singles]
        candidate = self.candidate(torch.cat([*singles, dense], dim=1))
        tokens, present = [], []
        for feature, kind in zip(self._sequences, self.kind, strict=True):
            sequence = rows[feature.name]
            tokens.append(sequence.to_padded_dense(feature.max_length) + kind)
            places = torch.arange(feature.max_length, device=labels.device)
            present.append(places < sequence.lengths().unsqueeze(1))
        x = torch.cat([*tokens, candidate.unsqueeze(1)], dim=1)
        seen = torch.cat([*present, torch.ones_like(labels, dtype=torch.bool).unsqueeze(1)], dim=1)
        for layer in self.layers:
            x = layer(x, seen)
        # The candidate stands last and has seen everything before it.
        return output_of(self.mlp(x[:, -1]).squeeze(1), labels)


class GatedAttention(nn.Module):
    """One layer. A token attends to itself and what stands before it."""

    def __init__(self, dim: int, heads: int, length: int) -> None:
        super().__init__()
        self._heads = heads
        self.before, self.after = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.projections = nn.Linear(dim, 4 * dim)
        self.out = nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.zeros(heads, length))
        places = torch.arange(length)
        self.register_buffer("distance", (places.unsqueeze(1) - places).clamp(min=0), persistent=False)
        self.register_buffer("causal", places.unsqueeze(1) >= places, persistent=False)
        self.distance: torch.Tensor
        self.causal: torch.Tensor

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """`x` of shape (n, length, dim), `seen` (n, length) is False for padding; the result has the shape of `x`."""
        samples, length, dim = x.shape
        gate, value, query, key = functional.silu(self.projections(self.before(x))).chunk(4, dim=2)
        value, query, key = (
            each.view(samples, length, self._heads, dim // self._heads).transpose(1, 2) for each in (value, query, key)
        )
        scores = query @ key.transpose(2, 3) + self.bias[:, self.distance]
        visible = (self.causal & seen.unsqueeze(1)).unsqueeze(1)
        weights = functional.silu(scores).masked_fill(~visible, 0.0) / length
        attended = (weights @ value).transpose(1, 2).reshape(samples, length, dim)
        after: torch.Tensor = x + self.out(self.after(attended) * gate)
        return after
