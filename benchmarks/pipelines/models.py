"""The models of made-up workloads. Tables are on the meta device, and filled when they are sharded."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrec.datasets.utils import Batch
from torchrec.modules.embedding_configs import BaseEmbeddingConfig, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from workers.sources.schema import Feature, Schema, Table

DIM, IDS_PER_SAMPLE = 128, 8

Config = TypeVar("Config", bound=BaseEmbeddingConfig)


def _config(kind: type[Config], schema: Schema, table: Table) -> Config:
    made: Config = kind(
        name=table.name,
        embedding_dim=DIM,
        num_embeddings=table.rows,
        feature_names=schema.features_of(table.name),
    )
    return made


class Tower(nn.Module):
    """A small network over every looked-up row, so that compute weighs as much as communication; hardly any weights."""

    def __init__(self, schema: Schema, hidden: int) -> None:
        super().__init__()
        self.embeddings = EmbeddingCollection(
            tables=[_config(EmbeddingConfig, schema, table) for table in schema.tables], device=torch.device("meta")
        )
        self.head = TowerHead([feature.name for feature in schema.features], hidden)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and detached loss of a batch."""
        loss: Tensor = self.head(self.embeddings(batch.sparse_features), batch.labels)
        return loss, loss.detach()


class TowerHead(nn.Module):
    """From looked-up rows to a loss; one tower for each feature."""

    def __init__(self, features: Sequence[str], hidden: int) -> None:
        super().__init__()
        self.towers = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(DIM, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
                for name in features
            }
        )
        self.logit = nn.Linear(len(features) * hidden, 1)

    def forward(self, rows: Any, labels: Tensor) -> Tensor:
        """`rows` by feature, `[samples * IDS_PER_SAMPLE, DIM]`; `labels` `[samples]`."""
        pooled = [
            tower(rows[name].values()).view(len(labels), IDS_PER_SAMPLE, -1).mean(1)
            for name, tower in self.towers.items()
        ]
        return functional.binary_cross_entropy_with_logits(self.logit(torch.cat(pooled, 1)).squeeze(1), labels)


class Dlrm(nn.Module):
    """Sequence tables, pooled tables and dense features, of which a network takes the interactions.

    The first half of the schema's tables is looked up as sequences, with a small network over every row; the second is
    pooled by TorchRec, whose AllToAll no schedule of Overlane moves.
    """

    def __init__(self, schema: Schema, hidden: int) -> None:
        super().__init__()
        device, half = torch.device("meta"), len(schema.tables) // 2
        sequences, pooled = schema.tables[:half], schema.tables[half:]
        self.embeddings = EmbeddingCollection(
            tables=[_config(EmbeddingConfig, schema, table) for table in sequences], device=device
        )
        self.pooled = EmbeddingBagCollection(
            tables=[_config(EmbeddingBagConfig, schema, table) for table in pooled], device=device
        )
        names = {table.name for table in sequences}
        self.head = DlrmHead(
            [each for each in schema.features if each.table in names], len(pooled), schema.dense, hidden
        )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and detached loss of a batch."""
        rows, pooled = self.embeddings(batch.sparse_features), self.pooled(batch.sparse_features)
        loss: Tensor = self.head(rows, pooled, batch.dense_features, batch.labels)
        return loss, loss.detach()


class DlrmHead(nn.Module):
    """From rows, pooled vectors and dense features to a loss, by their dot products."""

    def __init__(self, sequences: Sequence[Feature], pooled: int, dense: int, hidden: int) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(dense, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        self.towers = nn.ModuleDict(
            {each.name: nn.Sequential(nn.Linear(DIM, hidden), nn.ReLU(), nn.Linear(hidden, DIM)) for each in sequences}
        )
        vectors = 1 + pooled + len(sequences)
        self.top = nn.Sequential(nn.Linear(DIM + vectors * vectors, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, rows: Any, pooled: Any, dense: Tensor, labels: Tensor) -> Tensor:
        """`rows` by feature, `[samples * IDS_PER_SAMPLE, DIM]`; `pooled` keyed, `[samples, pooled * DIM]`; `dense`
        `[samples, dense]`; `labels` `[samples]`.
        """
        samples = len(labels)
        bottom = self.bottom(dense)
        sequences = [
            tower(rows[name].values()).view(samples, IDS_PER_SAMPLE, DIM).mean(1) for name, tower in self.towers.items()
        ]
        vectors = torch.cat([bottom.unsqueeze(1), pooled.values().view(samples, -1, DIM), torch.stack(sequences, 1)], 1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        logits = self.top(torch.cat([bottom, dots], 1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logits, labels)
