"""The sharders to build a model with, so that the pipeline can prioritize it."""

from typing import Any

from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.pec_embedding import PECEmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection


def sharders(**options: Any) -> list[ModuleSharder[nn.Module]]:
    """TorchRec's sharders: for `EmbeddingCollection` and its PEC wrapper with `options`, the defaults for the rest.

    `options` are those of TorchRec's `EmbeddingCollectionSharder`, e.g. `fused_params`. Weights and state dict names
    stay TorchRec's own.
    """
    collection = EmbeddingCollectionSharder(**options)
    wrapped = PECEmbeddingCollectionSharder(ec_sharder=collection)
    own = {EmbeddingCollection, PECEmbeddingCollection}
    return [collection, wrapped, *(each for each in get_default_sharders() if each.module_type not in own)]
