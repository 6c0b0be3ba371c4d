"""How large DDP's buckets are made."""

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from pipeline import data_parallel_wrapper


class Model(nn.Module):
    """`megabytes` of dense weights beside tables that are far larger."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        device = torch.device("meta")
        rows, dim = 10_000_000, 128
        self.sequences = EmbeddingCollection(
            tables=[EmbeddingConfig(name="s", num_embeddings=rows, embedding_dim=dim, feature_names=["s"])],
            device=device,
        )
        self.pooled = EmbeddingBagCollection(
            tables=[EmbeddingBagConfig(name="p", num_embeddings=rows, embedding_dim=dim, feature_names=["p"])],
            device=device,
        )
        self.dense = nn.Linear(1024, int(megabytes * 256), bias=False, device=device)


@pytest.mark.parametrize(("megabytes", "bucket_mb"), [(8, 1.0), (1, 0.125), (0.125, 0.0625), (800, 25.0)])
def test_a_bucket_is_an_eighth_of_the_dense_part_within_limits(megabytes: float, bucket_mb: float) -> None:
    assert data_parallel_wrapper(Model(megabytes))._bucket_cap_mb == bucket_mb
