"""What the built-in models have in common: sequence tables, perceptrons, and the loss of a ranker."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import nn
from torch.nn import functional
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from workers.sources.schema import Schema, Table

Config = TypeVar("Config", EmbeddingConfig, EmbeddingBagConfig)
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


# No worker ever holds a whole table: each rank fills its own shard.
META = torch.device("meta")


def sequence_tables(schema: Schema, tables: Iterable[Table], dim: int) -> EmbeddingCollection:
    """Tables whose rows come back one by one."""
    return EmbeddingCollection(tables=table_configs(EmbeddingConfig, schema, tables, dim), device=META)


def pooled_tables(schema: Schema, tables: Iterable[Table], dim: int) -> EmbeddingBagCollection:
    """Tables whose rows are summed up for each sample."""
    return EmbeddingBagCollection(tables=table_configs(EmbeddingBagConfig, schema, tables, dim), device=META)


def table_configs(kind: type[Config], schema: Schema, tables: Iterable[Table], dim: int) -> list[Config]:
    """TorchRec's description of each table, with the features that look it up."""
    return [
        kind(
            name=table.name,
            embedding_dim=dim,
            num_embeddings=table.rows,
            feature_names=schema.features_of(table.name),
        )
        for table in tables
    ]


def perceptron(width: int, hidden: Sequence[int], out: int) -> nn.Sequential:
    """Linear layers with rectifiers in between."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, out))


def output_of(logits: torch.Tensor, labels: torch.Tensor) -> Output:
    """Binary cross-entropy of `logits` and `labels`, both of shape (n,), and what a model returns."""
    # A mean that is 0, and not NaN, for a rank that takes part in a step with an empty batch.
    loss = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / max(1, len(labels))
    return loss, (loss.detach(), logits.detach(), labels.detach())
