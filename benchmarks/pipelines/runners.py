"""A contestant with its own model and batches, ready to train steps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.datasets.utils import Batch
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.pec_embedding import PECEmbeddingCollectionSharder
from torchrec.distributed.train_pipeline import train_pipelines
from torchrec.distributed.train_pipeline.pec_train_pipeline import TrainPipelinePEC
from torchrec.distributed.types import QuantizedCommCodecs
from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection

from benchmarks.pipelines import workload
from benchmarks.pipelines.limits import TransfersAlone, keep_transfers_local, wait_for_nothing
from benchmarks.pipelines.scenario import Contestant, Family, Limit, Precision, Scenario, Transport
from benchmarks.pipelines.standins import OnCpu
from pipeline import TrainPipeline, sharders
from pipeline.dedup import register_cpu_kernel
from pipeline.runtime import Runtime

CPU = torch.device("cpu")
_OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
SPARSE_LR = 0.05
_ASK_FOR_STREAMS = frozenset({"TrainPipelineFusedSparseDist", "TrainPipelinePEC"})


class Pipeline(Protocol):
    """What TorchRec's pipelines and Overlane's have in common."""

    def progress(self, dataloader_iter: Iterator[Batch], /) -> Any:
        """Train one batch."""
        ...


@dataclass(frozen=True)
class Runner:
    """A contestant in this process. `overlane` is its pipeline once more where it reports its steps."""

    contestant: Contestant
    training: workload.Training
    pipeline: Pipeline
    batches: Iterator[Batch]
    overlane: "TrainPipeline[Batch, Any] | None" = None

    def step(self) -> None:
        """Train one batch."""
        self.pipeline.progress(self.batches)


def prepare(contestant: Contestant, scenario: Scenario, stream: workload.Stream) -> Runner:
    """Build a contestant; every rank does so at the same point. Raises what its pipeline raises."""
    if contestant.family is Family.TORCHREC:
        return _torchrec(contestant, scenario, stream)
    kinds = sharders(
        fused_params=_fused(scenario),
        qcomm_codecs_registry=_codecs(contestant.precision),
        **sharder_options(contestant, scenario),
    )
    training = workload.build(scenario, stream.schema, kinds)
    pipe: TrainPipeline[Batch, Any] = TrainPipeline(
        training.model, training.optimizer, CPU, schedule=contestant.pipeline, **contestant.pipeline_options
    )
    match contestant.transport:
        case Transport.GLOO:
            _use_gloo_alltoall(pipe)
        case Transport.ONE_GROUP:
            _share_a_group(pipe)
    match contestant.limit:
        case Limit.TRANSFERS:
            keep_transfers_local(pipe._runtime)
        case Limit.WAITING:
            wait_for_nothing(pipe._runtime)
        case Limit.COMPUTE:
            return Runner(contestant, training, TransfersAlone(pipe), stream.endless())
    return Runner(contestant, training, pipe, stream.endless(), pipe)


def sharder_options(contestant: Contestant, scenario: Scenario) -> dict[str, bool]:
    """What its sharders are given. TorchRec has no dedup on CPU, unless a contestant asks for Overlane's kernel."""
    if scenario.dedup and contestant.family is not Family.TORCHREC:
        return {"use_index_dedup": True, **contestant.sharder_options}
    return contestant.sharder_options


def _codecs(precision: Precision) -> dict[str, QuantizedCommCodecs] | None:
    if precision is Precision.FP32:
        return None
    kind = CommType[precision.name]
    made: dict[str, QuantizedCommCodecs] = get_qcomm_codecs_registry(
        QCommsConfig(forward_precision=kind, backward_precision=kind)
    )
    return made


def _torchrec(contestant: Contestant, scenario: Scenario, stream: workload.Stream) -> Runner:
    collection = EmbeddingCollectionSharder(fused_params=_fused(scenario), **contestant.sharder_options)
    if contestant.sharder_options.get("use_index_dedup"):
        register_cpu_kernel()
    pec = contestant.pipeline == TrainPipelinePEC.__name__
    kinds = [collection, PECEmbeddingCollectionSharder(ec_sharder=collection)] if pec else [collection]
    training = workload.build(scenario, stream.schema, kinds, wrap=PECEmbeddingCollection if pec else None)
    pipeline = TrainPipelinePEC if pec else getattr(train_pipelines, contestant.pipeline)
    if contestant.pipeline in _ASK_FOR_STREAMS:
        return Runner(contestant, training, OnCpu(pipeline, training.model, training.optimizer), stream.endless())
    return Runner(contestant, training, pipeline(training.model, training.optimizer, CPU), stream.endless())


def _fused(scenario: Scenario) -> dict[str, Any]:
    return {"optimizer": _OPTIMIZERS[scenario.sparse_optimizer], "learning_rate": SPARSE_LR}


def _use_gloo_alltoall(pipe: "TrainPipeline[Batch, Any]") -> None:
    """The base of the runtimes moves with the backend's own AllToAll."""
    runtime: Any = pipe._runtime
    runtime._transfer = Runtime._transfer.__get__(runtime)


def _share_a_group(pipe: "TrainPipeline[Batch, Any]") -> None:
    """NOL rows travel on the process group of OL rows."""
    stage: Any = pipe._functions["ol_embedding_a2a"]
    embeddings = stage.func.__self__
    embeddings._groups = replace(embeddings._groups, background=embeddings._groups.priority)
