"""When early stopping ends a training."""

import pytest

from workers.job import EarlyStoppingSpec, InvalidJob, parse_job
from workers.training.position import Position

AUC = EarlyStoppingSpec(patience=2, min_delta=0.01)
NE = EarlyStoppingSpec(metric="ne", patience=1)


def after(stopping: EarlyStoppingSpec, *values: float | None) -> Position:
    position = Position(steps=5)
    for value in values:
        position = position.evaluated(stopping, {stopping.metric: value})
    return position


@pytest.mark.parametrize(
    ("stopping", "values", "final"),
    [
        (AUC, [0.6], False),
        (AUC, [0.6, 0.6], False),
        (AUC, [0.6, 0.605, 0.609], True),
        (AUC, [0.6, 0.605, 0.62], False),
        (AUC, [0.6, 0.5, 0.62, 0.62], False),
        (AUC, [0.6, None, None], True),
        (AUC, [None, 0.6, None], False),
        (NE, [0.9, 0.8, 0.7], False),
        (NE, [0.9, 0.8, 0.8], True),
    ],
)
def test_it_ends_after_so_many_evaluations_without_a_gain(
    stopping: EarlyStoppingSpec, values: list[float | None], final: bool
) -> None:
    assert after(stopping, *values).is_final(stopping) is final


def test_steps_do_not_change_what_was_evaluated() -> None:
    position = after(AUC, 0.6, 0.6).at(9, samples_per_step=32)
    assert position == Position(steps=9, samples=4 * 32, best=0.6, stale=1)
    assert not position.is_final(None)


@pytest.mark.parametrize(
    ("evaluation", "problem"),
    [
        ({"early_stopping": {}}, "evaluation: early_stopping needs evaluations to go by; set every_steps as well"),
        ({"every_steps": 0}, "evaluation.every_steps: .* greater than or equal to 1"),
        ({"every_steps": 5, "early_stopping": {"metric": "acc"}}, "evaluation.early_stopping.metric: .* 'auc' or 'ne'"),
        ({"every": 5}, "evaluation.every: unknown field; did you mean 'every_steps'"),
        ({"every_steps": 5, "early_stopping": {"patienc": 1}}, "patienc: unknown field; did you mean 'patience'"),
    ],
)
def test_what_cannot_be_meant_is_explained(evaluation: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem):
        parse_job({"name": "a", "evaluation": evaluation})
