"""The benchmark as `make bench` runs it, and as the command line asks for it."""

import sys
from collections.abc import Sequence

from benchmarks.pipelines.measure import measure
from benchmarks.pipelines.page import draw
from benchmarks.pipelines.records import PipelinesResult
from benchmarks.pipelines.report import result, table
from benchmarks.pipelines.scenario import STANDARD, Plan, Scenario, Workload

# Compute and communication about equal; communication the longer; compute the longer.
BALANCED, LINK_BOUND, COMPUTE_BOUND = "500mbit", "250mbit", "1gbit"
_SHORT = tuple(
    each
    for each in STANDARD
    if each.name in ("TorchRec SparseDist", "TorchRec PEC", "sync", "prioritized", "compute only")
)
STANDARD_PLANS = (
    Plan(scenario=Scenario(), contestants=STANDARD),
    *(Plan(scenario=Scenario(id_overlap=share), contestants=_SHORT, turns=8) for share in (0.05, 0.30)),
    *(Plan(scenario=Scenario(rate=rate), contestants=_SHORT, turns=8) for rate in (LINK_BOUND, COMPUTE_BOUND)),
    Plan(scenario=Scenario(workload=Workload.MOVIELENS, rate=BALANCED), contestants=STANDARD, turns=8),
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
