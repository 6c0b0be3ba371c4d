"""The check of TorchRec's `test_pec_train_pipeline.py`, for more kinds of models and without leaving batches out."""

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.pec_embedding import ShardedPECEmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration.pipeline.reference import Batch
from tests.integration.pipeline.torchrec_pec.models import (
    Kind,
    Module,
    Pipe,
    Table,
    Training,
    build,
    train_pipelined,
    train_plainly,
)
from tests.ranks import RankPool

POOLED = Module("ebc", Kind.POOLED, (Table("pooled", 100, ("pooled_feature",)),), sharding="table_wise")
SEQUENCES = Module("pec", Kind.PEC, (Table("first", 100, ("one",)), Table("second", 100, ("two",))))
MORE = Module("more", Kind.PEC, (Table("third", 60, ("three", "one")),))
PLAIN = Module("plain", Kind.PLAIN, (Table("fourth", 80, ("four",)), Table("fifth", 30, ("two",))))

MODELS = {
    "pooled and PEC": (POOLED, SEQUENCES),
    "PEC alone": (SEQUENCES,),
    "two PEC modules, one feature in both": (SEQUENCES, MORE),
    "PEC and a plain collection": (SEQUENCES, PLAIN),
    "everything": (POOLED, SEQUENCES, MORE, PLAIN),
}


def random_batches(modules: tuple[Module, ...], ranks: int, count: int) -> tuple[tuple[Batch, ...], ...]:
    """Ten samples per batch, up to five ids per feature."""
    generator = torch.Generator().manual_seed(11)
    rows = {feature: table.rows for module in modules for table in module.tables for feature in table.features}
    rows |= {"one": min(60, rows["one"]), "two": min(30, rows["two"])}

    def one() -> Batch:
        lengths = torch.randint(0, 6, (len(rows), 10), generator=generator)
        values = [
            torch.randint(0, rows[name], (int(own.sum()),), generator=generator)
            for name, own in zip(rows, lengths, strict=True)
        ]
        ids = KeyedJaggedTensor(keys=list(rows), values=torch.cat(values), lengths=lengths.view(-1))
        return Batch(ids, torch.randn(10, 4, generator=generator))

    return tuple(tuple(one() for _ in range(count)) for _ in range(ranks))


def compare(
    device: torch.device,
    name: str,
    count: int,
    schedule: str = "prioritized",
    optimizer: EmbOptimType = EmbOptimType.EXACT_SGD,
) -> dict[str, object]:
    modules = MODELS[name]
    training = Training(modules, random_batches(modules, dist.get_world_size(), count), optimizer)
    model, _ = build(training, device)
    wrapped = [path for path, each in model.module.named_modules() if isinstance(each, ShardedPECEmbeddingCollection)]
    names: list[set[str]] = []

    def watch(pipe: Pipe) -> None:
        names.extend((set(pipe.prioritized), set(pipe.not_prioritized)))

    found = train_pipelined(training, device, schedule, watch)
    prioritized, not_prioritized = names
    return {
        "missed": sorted(set(wrapped) - prioritized),
        "prioritized": sorted(prioritized),
        "not": sorted(not_prioritized),
        "differences": found.differs_from(train_plainly(training, device)),
        "steps": len(found.outputs),
    }


@pytest.mark.parametrize("schedule", ["sync", "sparse_dist", "prioritized"])
@pytest.mark.parametrize("name", MODELS)
def test_predictions_and_weights_are_those_of_plain_training(ranks: RankPool, name: str, schedule: str) -> None:
    """Answers TrainPipelinePECTest.test_pipeline_numerical: seven batches of ten samples on two ranks, SGD at 0.1.

    TorchRec compares the predictions of all but the last two batches within a tolerance; here all seven predictions,
    the embeddings, and after flush the weights and optimizer states are equal bit for bit.
    """
    modules = MODELS[name]
    for found in ranks.run(2, compare, name=name, count=7, schedule=schedule):
        assert found == {
            "missed": [],
            "prioritized": sorted(module.name for module in modules if module.kind is not Kind.POOLED),
            "not": sorted(module.name for module in modules if module.kind is Kind.POOLED),
            "differences": [],
            "steps": 7,
        }


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_batches_than_the_pipeline_is_deep(ranks: RankPool, count: int) -> None:
    """Not in TorchRec, whose pipeline fills itself with two batches: the first batch is also one of the last two."""
    for found in ranks.run(2, compare, name="everything", count=count):
        assert (found["differences"], found["steps"]) == ([], count)


def test_row_wise_adagrad(ranks: RankPool) -> None:
    """Not in TorchRec, and needed: its state shows gradients of the wrong scale, which its weights hide."""
    optimizer = EmbOptimType.EXACT_ROWWISE_ADAGRAD
    for found in ranks.run(3, compare, name="everything", count=5, optimizer=optimizer):
        assert found["differences"] == []
