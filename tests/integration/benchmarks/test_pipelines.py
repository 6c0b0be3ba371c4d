"""The whole benchmark, small: TorchRec's pipelines, a schedule, a variant and a limit on two nodes."""

import os

import pytest

from benchmarks.pipelines.measure import measure
from benchmarks.pipelines.report import result
from benchmarks.pipelines.run import DEDUP, TORCHREC_DEDUP
from benchmarks.pipelines.scenario import STANDARD, Contestant, Plan, Scenario
from benchmarks.testbed import Layout, Testbed, TestbedUnavailable

NAMES = (
    "TorchRec Base",
    "TorchRec SparseDist",
    "TorchRec FusedSparseDist",
    "TorchRec PEC",
    "prioritized",
    "compute only",
    "transfers alone (prioritized)",
)


def test_contestants_take_turns_and_train_the_same_bits() -> None:
    try:
        with Testbed(Layout()):
            pass
    except TestbedUnavailable as error:
        pytest.skip(str(error))
    levers = [Contestant.parse(f"{value}=prioritized,transport={value}") for value in ("gloo", "one-group")]
    halves = [Contestant.parse(f"{schedule} fp16={schedule},precision=fp16") for schedule in ("sync", "prioritized")]
    dedup = [TORCHREC_DEDUP, *DEDUP]
    plan = Plan(
        scenario=Scenario(batch_size=16, hidden=8, rate="unlimited"),
        contestants=(*(each for each in STANDARD if each.name in NAMES), *levers, *halves, *dedup),
        turns=2,
        block=2,
        settle=1,
    )
    before = os.environ.copy()
    record = measure(plan)
    assert os.environ == before
    assert record.unable == {}
    assert [each.contestant for each in record.outcomes] == list(plan.contestants)
    assert all(len(each.blocks_ms) == 2 for each in record.outcomes)
    # The first ones of a kind are what the others are compared with.
    compared = (
        "TorchRec SparseDist",
        "TorchRec FusedSparseDist",
        "prioritized",
        "gloo",
        "one-group",
        "prioritized fp16",
    )
    assert record.unequal == dict.fromkeys((*compared, "sync dedup", "prioritized dedup"), ())
    assert record.communication_ms is None
    assert [each.contestant for each in record.timelines] == [each.name for each in plan.contestants]
    assert all(each.spans for each in record.timelines)
    prioritized, limit = record.outcome("prioritized"), record.outcome("compute only")
    assert prioritized is not None
    assert limit is not None
    assert {each.name for each in prioritized.collectives} >= {"embedding", "gradient", "dense_allreduce"}
    assert not {each.name for each in limit.collectives} & {"embedding", "gradient"}
    assert result("small", [record], None).reached is True
