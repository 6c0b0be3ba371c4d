"""The benchmark as `make bench` runs it, and as the command line asks for it."""

import sys
from collections.abc import Sequence

from benchmarks.pipelines.measure import measure
from benchmarks.pipelines.page import draw
from benchmarks.pipelines.records import PipelinesResult
from benchmarks.pipelines.report import result, table
from benchmarks.pipelines.scenario import (
    STANDARD,
    Contestant,
    Family,
    Plan,
    Precision,
    Scenario,
    Transport,
    Workload,
)

# Compute and communication about equal; communication the longer; compute the longer; nothing to hide.
BALANCED, LINK_BOUND, COMPUTE_BOUND, UNLIMITED = "450mbit", "200mbit", "1gbit", "unlimited"
# About equal where distinct ids only are sent.
BALANCED_WITH_DEDUP = "225mbit"
DEDUP = tuple(
    Contestant(
        name=f"{schedule} dedup", family=Family.OVERLANE, pipeline=schedule, sharder_options={"use_index_dedup": True}
    )
    for schedule in ("sync", "prioritized")
)
LEVERS = (
    Contestant(name="one group", family=Family.OVERLANE, pipeline="prioritized", transport=Transport.ONE_GROUP),
    *(
        Contestant(name=f"{schedule} {precision}", family=Family.OVERLANE, pipeline=schedule, precision=precision)
        for schedule, precision in (
            ("sync", Precision.FP16),
            ("prioritized", Precision.FP16),
            ("sync", Precision.BF16),
            ("prioritized", Precision.BF16),
        )
    ),
)
# TorchRec's own dedup, with the kernel that fbgemm lacks on CPU and Overlane brings.
TORCHREC_DEDUP = Contestant(
    name="TorchRec SparseDist dedup",
    family=Family.TORCHREC,
    pipeline="TrainPipelineSparseDist",
    sharder_options={"use_index_dedup": True},
)
_SHORT = tuple(each for each in STANDARD if each.limit or each.name in ("TorchRec SparseDist", "sync", "prioritized"))


def _plan(scenario: Scenario, contestants: tuple[Contestant, ...], turns: int = 8) -> Plan:
    return Plan(scenario=scenario, contestants=contestants, turns=turns, block=8)


STANDARD_PLANS = (
    _plan(Scenario(), (*STANDARD, *DEDUP, *LEVERS), turns=12),
    _plan(Scenario(rate=BALANCED_WITH_DEDUP, dedup=True), (TORCHREC_DEDUP, *_SHORT), turns=12),
    *(_plan(Scenario(id_overlap=share), _SHORT) for share in (0.05, 0.30)),
    *(_plan(Scenario(rate=rate), _SHORT) for rate in (LINK_BOUND, COMPUTE_BOUND, UNLIMITED)),
    _plan(Scenario(workload=Workload.MOVIELENS), (*STANDARD, *DEDUP)),
    _plan(Scenario(workload=Workload.DLRM), STANDARD),
)


def run() -> PipelinesResult:
    """The standard scenarios. Raises `TestbedUnavailable` where there can be no testbed."""
    return run_plans("pipelines", STANDARD_PLANS)


def run_plans(name: str, plans: Sequence[Plan], command: str | None = None) -> PipelinesResult:
    """Measure, print each scenario as soon as it is known, and draw the page."""
    records = []
    for plan in plans:
        records.append(measure(plan))
        sys.stdout.write(table(records[-1]) + "\n")
        sys.stdout.flush()
    made = result(name, records, command)
    draw(made)
    return made
