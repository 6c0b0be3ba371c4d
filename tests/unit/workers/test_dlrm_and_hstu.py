"""The other built-in models, unsharded: gradients, the batches that break models, and what they refuse."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchrec.datasets.utils import Batch

from workers.job import InvalidJob, ModelSpec
from workers.models import build_model
from workers.sources.schema import Feature, Ragged, Samples, Schema, Table
from workers.training.batches import to_batch

SCHEMA = Schema(
    tables=(Table("user", 5), Table("item", 9)),
    features=(Feature("user", "user"), Feature("item", "item"), Feature("history", "item", 3)),
    dense=2,
)
SINGLES = Schema(tables=(Table("user", 5),), features=(Feature("user", "user"),))
SEQUENCES = Schema(tables=(Table("item", 9),), features=(Feature("history", "item", 3),))
MODELS = {
    "dlrm": {"bottom": [4], "top": [4]},
    "dlrm-nothing-pooled": {"pooled": []},
    "dlrm-all-pooled": {"pooled": ["user", "item"]},
    "hstu": {"heads": 4, "layers": 2},
}
HISTORIES = {
    "mixed": [[1, 2, 3], [4], []],
    "no-history": [[], []],
    "one-sample": [[8]],
    "no-samples": [],
}


def batch(histories: list[list[int]], schema: Schema = SCHEMA) -> Batch:
    size = len(histories)
    one = np.ones(size, dtype=np.int64)
    ids = {
        "user": Ragged(np.arange(size) % 5, one),
        "item": Ragged(np.arange(size) % 9, one),
        "history": Ragged(
            np.array([item for history in histories for item in history], dtype=np.int64),
            np.array([len(history) for history in histories], dtype=np.int64),
        ),
    }
    dense = np.ones((size, schema.dense), dtype=np.float32)
    return to_batch(Samples((np.arange(size) % 2).astype(np.float32), ids, dense), schema)


def model(name: str, schema: Schema = SCHEMA, **params: Any) -> nn.Module:
    torch.manual_seed(0)
    factory = f"workers.models:{name.partition('-')[0]}"
    made = build_model(ModelSpec(factory=factory, params={"embedding_dim": 8, **params}), schema)
    for tables in made.children():
        if any(parameter.is_meta for parameter in tables.parameters()):
            tables.to_empty(device="cpu")
            for table in tables.parameters():
                nn.init.normal_(table)
    return made


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("histories", HISTORIES.values(), ids=list(HISTORIES))
def test_loss_and_gradients_are_finite_whatever_the_batch_holds(name: str, histories: list[list[int]]) -> None:
    made = model(name, **MODELS[name])
    loss, (detached, logits, labels) = made(batch(histories))
    loss.backward()
    assert loss.isfinite()
    assert not detached.requires_grad
    assert logits.shape == labels.shape == (len(histories),)
    assert all(each.grad is None or bool(each.grad.isfinite().all()) for each in made.parameters())
    assert all(each.grad is not None for each in made.get_submodule("head").parameters())


@pytest.mark.parametrize(("name", "schema"), [("dlrm", SINGLES), ("dlrm", SEQUENCES), ("hstu", SEQUENCES)])
def test_any_schema_will_do(name: str, schema: Schema) -> None:
    loss, _ = model(name, schema)(batch([[1, 2], []], schema))
    assert loss.isfinite()


@pytest.mark.parametrize("name", MODELS)
def test_every_id_has_a_say_and_padding_has_none(name: str) -> None:
    made = model(name, **MODELS[name])
    one = made(batch([[1, 2], [3]]))[1][1]
    longer_neighbour = made(batch([[1, 2], [3, 4, 5]]))[1][1]
    assert torch.equal(one[0], longer_neighbour[0])
    assert one[1] != longer_neighbour[1]


def test_hstu_knows_the_order_of_a_history() -> None:
    made = model("hstu", layers=1)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("layers.0.bias"):
                parameter.copy_(torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter))
    assert made(batch([[1, 2, 3]]))[1][1] != made(batch([[3, 2, 1]]))[1][1]


def test_tables_that_no_sequence_uses_are_pooled() -> None:
    made = model("dlrm")
    assert [each.name for each in made.pooled.embedding_bag_configs()] == ["user"]  # type: ignore[operator, union-attr]
    assert [each.name for each in made.embeddings.embedding_configs()] == ["item"]  # type: ignore[operator, union-attr]


@pytest.mark.parametrize(
    ("name", "schema", "params", "problem"),
    [
        ("dlrm", SCHEMA, {"pooled": ["users"]}, "model.params.pooled: no table 'users'; the data has user, item"),
        ("dlrm", SCHEMA, {"botom": [4]}, "model.params.botom: unknown field; did you mean 'bottom'"),
        ("hstu", SCHEMA, {"heads": 3}, "model.params: heads: 3 do not divide embedding_dim 8"),
        ("hstu", SINGLES, {}, "model.factory: hstu needs a sequence"),
    ],
)
def test_what_does_not_fit_is_explained(name: str, schema: Schema, params: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem):
        model(name, schema, **params)
