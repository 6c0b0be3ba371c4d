"""The figures of an evaluation on scores that can be worked out by hand."""

import math

import pytest
import torch

from workers.training.evaluate import figures

LABELS = torch.tensor([1.0, 0.0, 0.0, 0.0])


def test_the_mean_label_alone_is_worth_nothing() -> None:
    found = figures(torch.full((4,), 0.25), LABELS)
    assert found["auc"] == 0.5
    assert found["ne"] == pytest.approx(1.0)
    assert found["calibration"] == pytest.approx(1.0)


def test_better_scores_have_less_entropy() -> None:
    found = figures(torch.tensor([0.5, 0.25, 0.25, 0.25]), LABELS)
    entropy = -(math.log2(0.25) + 3 * math.log2(0.75))
    assert found["auc"] == 1.0
    assert found["ne"] == pytest.approx((1 - 3 * math.log2(0.75)) / entropy)
    assert found["calibration"] == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("scores", "labels"),
    [([0.5, 0.5], [1.0, 1.0]), ([0.5, 0.5], [0.0, 0.0]), ([0.5, math.nan], [0.0, 1.0])],
    ids=["one-label", "other-label", "diverged"],
)
def test_what_means_nothing_has_no_value(scores: list[float], labels: list[float]) -> None:
    assert figures(torch.tensor(scores), torch.tensor(labels)) == {"auc": None, "ne": None, "calibration": None}
