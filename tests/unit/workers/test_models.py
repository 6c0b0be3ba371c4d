"""The built-in model, unsharded: shapes, gradients, and the batches that break models."""

from typing import Any

import numpy as np
import pytest
import torch

from workers.job import InvalidJob, ModelSpec
from workers.models import build_model, sequence_ranker
from workers.models.ranker import SequenceRanker
from workers.sources.schema import Feature, Ragged, Samples, Schema, Table
from workers.training.batches import BatchFeed, to_batch

SCHEMA = Schema(
    tables=(Table("user", 5), Table("item", 9)),
    features=(Feature("user", "user"), Feature("item", "item"), Feature("history", "item", 3)),
)


def samples(histories: list[list[int]]) -> Samples:
    size = len(histories)
    one = np.ones(size, dtype=np.int64)
    return Samples(
        labels=(np.arange(size) % 2).astype(np.float32),
        ids={
            "user": Ragged(np.arange(size) % 5, one),
            "item": Ragged(np.arange(size) % 9, one),
            "history": Ragged(
                np.array([item for history in histories for item in history], dtype=np.int64),
                np.array([len(history) for history in histories], dtype=np.int64),
            ),
        },
    )


def ranker(schema: Schema = SCHEMA, **params: Any) -> SequenceRanker:
    torch.manual_seed(0)
    model = sequence_ranker(schema, embedding_dim=8, hidden=[4], **params)
    model.embeddings.to_empty(device="cpu")
    for table in model.embeddings.parameters():
        torch.nn.init.normal_(table)
    return model


def test_a_batch_keeps_the_features_of_its_samples() -> None:
    batch = to_batch(samples([[1, 2], [], [3]]), SCHEMA)
    features = batch.sparse_features
    assert features.keys() == ["user", "item", "history"]
    assert features["history"].to_dense()[0].tolist() == [1, 2]
    assert features["history"].lengths().tolist() == [2, 0, 1]
    assert batch.dense_features.shape == (3, 0)


def test_the_feed_measures_the_wait_for_data_once() -> None:
    feed = BatchFeed(iter([samples([[1]])]), SCHEMA, first=0, pinned=False)
    next(feed)
    assert feed.take_wait_ms() > 0
    assert feed.take_wait_ms() == 0
    with pytest.raises(StopIteration):
        next(feed)


@pytest.mark.parametrize(
    "histories",
    [[[1, 2, 3], [4], []], [[], [], []], [[8]], [[]], []],
    ids=["mixed", "no-history", "one-sample", "one-sample-without-history", "no-samples"],
)
def test_loss_and_gradients_are_finite_whatever_the_batch_holds(histories: list[list[int]]) -> None:
    model = ranker()
    loss, (detached, logits, labels) = model(to_batch(samples(histories), SCHEMA))
    loss.backward()
    assert loss.isfinite()
    assert not detached.requires_grad
    assert logits.shape == labels.shape == (len(histories),)
    assert all(each.grad is None or each.grad.isfinite().all() for each in model.parameters())
    assert all(each.grad is not None for each in model.head.parameters())


def test_features_without_any_id_are_survived() -> None:
    schema = Schema(
        tables=(Table("a", 4), Table("b", 4)), features=(Feature("x", "a", 2), Feature("y", "b", 2)), dense=2
    )
    none = Ragged(np.zeros(0, dtype=np.int64), np.zeros(3, dtype=np.int64))
    batch = to_batch(
        Samples(np.zeros(3, dtype=np.float32), {"x": none, "y": none}, np.ones((3, 2), dtype=np.float32)), schema
    )
    loss, _ = ranker(schema)(batch)
    loss.backward()
    assert loss.isfinite()


def test_history_changes_the_answer_and_its_padding_does_not() -> None:
    model = ranker()
    one = model(to_batch(samples([[1, 2], [3]]), SCHEMA))[1][1]
    longer_neighbour = model(to_batch(samples([[1, 2], [3, 4, 5]]), SCHEMA))[1][1]
    assert one[0] == longer_neighbour[0]
    assert one[1] != longer_neighbour[1]


def test_the_same_seed_trains_the_same_bits() -> None:
    grads = []
    for _ in range(2):
        model = ranker()
        model(to_batch(samples([[1, 2, 1], [1], [2, 2]]), SCHEMA))[0].backward()
        grads.append([each.grad for each in model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*grads, strict=True))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"factory": "nowhere.at_all:model"}, "model.factory: cannot import 'nowhere.at_all:model'"),
        ({"factory": "workers.models:none"}, "model.factory: cannot import 'workers.models:none'"),
        (
            {"factory": "workers.models.ranker:SequenceRanker", "params": {"depth": 3}},
            "model.params: .* argument",
        ),
        ({"params": {"embeding_dim": 8}}, "model.params.embeding_dim: unknown field; did you mean 'embedding_dim'"),
        ({"params": {"embedding_dim": 6}}, r"model.params.embedding_dim: .* multiple of 4 \(got 6\)"),
        ({"params": {"embedding_dim": "abc"}}, r"model.params.embedding_dim: .* valid integer.* \(got \"abc\"\)"),
        ({"params": {"hidden": [8, 0]}}, r"model.params.hidden.1: .* greater than 0 \(got 0\)"),
    ],
)
def test_a_model_that_cannot_be_built_is_explained(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem):
        build_model(ModelSpec(**spec), SCHEMA)
