"""Runs a scenario on a testbed and brings together what its ranks measured."""

import sys
import tempfile
from pathlib import Path

from benchmarks.pipelines.link import communication_ms
from benchmarks.pipelines.records import Outcome, RankRecord, ScenarioRecord
from benchmarks.pipelines.scenario import Contestant, Family, Plan
from benchmarks.testbed import Testbed


def measure(plan: Plan) -> ScenarioRecord:
    """Raises `TestbedUnavailable` where there can be no testbed, and RuntimeError if a rank fails."""
    with Testbed(plan.scenario.layout) as testbed, tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "plan.json"
        asked.write_text(plan.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.pipelines.rank", str(asked), folder]
        # Namespaces have no name service, of which torch would warn for every connection.
        status = testbed.run(command, {"TORCH_CPP_LOG_LEVEL": "ERROR"})
        if status != 0:
            raise RuntimeError(f"a rank of {plan.scenario.title} ended with exit status {status}; see its output above")
        ranks = [
            RankRecord.model_validate_json((Path(folder) / f"{rank}.json").read_text(encoding="utf-8"))
            for rank in range(plan.scenario.nodes)
        ]
    return _together(plan, ranks)


def _together(plan: Plan, ranks: list[RankRecord]) -> ScenarioRecord:
    able = [each for each in plan.contestants if each.name not in ranks[0].unable]
    outcomes = tuple(Outcome.of(each, ranks) for each in able)
    return ScenarioRecord(
        scenario=plan.scenario,
        outcomes=outcomes,
        unable=ranks[0].unable,
        unequal={name: tuple(tensor for rank in ranks for tensor in rank.unequal[name]) for name in ranks[0].unequal},
        communication_ms=_communication_ms(plan, able, ranks),
        timelines=ranks[0].timelines,
        stages=ranks[0].stages,
    )


def _communication_ms(plan: Plan, able: list[Contestant], ranks: list[RankRecord]) -> float | None:
    """The bytes of a step of Overlane's first contestant on the rank that sends most, at the rate of its link."""
    rate = plan.scenario.layout.rate
    first = next((each.name for each in able if each.family is Family.OVERLANE), None)
    if rate is None or first is None:
        return None
    most = 0.0
    for rank in ranks:
        reports = [report for block in rank.blocks if block.contestant == first for report in block.reports]
        most = max(most, sum(each.bytes_sent for report in reports for each in report.collectives) / len(reports))
    return communication_ms(most, rate.bytes_per_ms)
