"""What to build a `DistributedModelParallel` with, so that the pipeline can hide its communication."""

from typing import Any

from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.pec_embedding import PECEmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection

from pipeline.dedup import register_cpu_kernel

_BUCKETS = 8
# DDP's own, and one that is still worth a message.
_MOST_MB, _LEAST_MB = 25.0, 0.0625


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


def data_parallel_wrapper(model: nn.Module) -> DefaultDataParallelWrapper:
    """TorchRec's wrapper for the dense part, with about eight DDP buckets.

    A bucket is reduced once its last gradient is there. DDP's own limit of 25 MB would hold a smaller dense part back
    until the end of backward, where nothing is left to hide it behind.
    """
    tables = [each for each in model.modules() if isinstance(each, EmbeddingCollection | EmbeddingBagCollection)]
    of_tables = {id(weight) for each in tables for weight in each.parameters()}
    dense = [each for each in model.parameters() if id(each) not in of_tables]
    megabytes = sum(each.numel() * each.element_size() for each in dense) / 2**20
    return DefaultDataParallelWrapper(bucket_cap_mb=min(_MOST_MB, max(_LEAST_MB, megabytes / _BUCKETS)))
