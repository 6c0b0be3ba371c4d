"""The sharders to build a model with, so that the pipeline can prioritize it."""

from typing import Any

from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.pec_embedding import PECEmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection

from pipeline.dedup import register_cpu_kernel


def sharders(**options: Any) -> list[ModuleSharder[nn.Module]]:
    """TorchRec's sharders: for `EmbeddingCollection` and its PEC wrapper with `options`, the defaults for the rest.

    `options` are those of TorchRec's `EmbeddingCollectionSharder`, e.g. `fused_params`. Weights and state dict names
    stay TorchRec's own.

    With `use_index_dedup=True` each rank asks for a distinct id of a table once, and sums the gradients of its places
    before they travel. Floats are then summed in another order: weights equal, bit for bit, those of synchronous
    training with the same sharders, and those without dedup up to rounding. fbgemm's missing CPU kernel is registered.
    On CUDA these sums have a fixed order, in synchronous training too, only after
    `torch.use_deterministic_algorithms(True)`.
    """
    if options.get("use_index_dedup"):
        register_cpu_kernel()
    collection = EmbeddingCollectionSharder(**options)
    wrapped = PECEmbeddingCollectionSharder(ec_sharder=collection)
    own = {EmbeddingCollection, PECEmbeddingCollection}
    return [collection, wrapped, *(each for each in get_default_sharders() if each.module_type not in own)]
