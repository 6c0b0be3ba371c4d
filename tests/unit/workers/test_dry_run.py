"""What a dry run finds in jobs that are good, and in jobs that are not."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from workers.dry_run import DryRun, Node, group_on
from workers.job import JobSpec, WorkersSpec, parse_job
from workers.plans import Check, CheckName, Finding, Outcome, findings_in
from workers.sources.schema import Schema

GIB = 1024**3
NODE: Node = {"CPU": 4.0, "memory": 4.0 * GIB}
OK, NO, NOT_CHECKED = Outcome.OK, Outcome.NO, Outcome.NOT_CHECKED


def job(**changes: Any) -> JobSpec:
    data = {"source": "synthetic", "params": {"samples": 1000, "rows": 50}}
    return parse_job({"name": "tiny", "data": data, "training": {"batch_size": 100}} | changes)


def found(spec: JobSpec, *nodes: Node) -> list[Finding]:
    findings: list[Finding] = []
    assert DryRun(spec, nodes or (NODE,), findings.append).run() == (findings[-1].check.outcome is not NO)
    return findings


def outcomes(findings: list[Finding]) -> list[tuple[CheckName, Outcome]]:
    return [(finding.check.name, finding.check.outcome) for finding in findings]


def test_a_good_job_has_a_plan() -> None:
    findings = found(job())
    assert outcomes(findings) == [(CheckName.DATA, OK), (CheckName.MODEL, OK), (CheckName.TABLES, OK)]
    assert findings[0].check.detail == "5 steps; 2 features look up 2 tables"
    plan = findings[-1].plan
    assert plan is not None
    assert (plan.steps, plan.world_size) == (5, 2)
    assert [(table.rows, table.sharding, table.ranks) for table in plan.sharding] == [(50, "row_wise", (0, 1))] * 2


def test_max_steps_ends_a_training_earlier() -> None:
    plan = found(job(training={"batch_size": 100, "max_steps": 3}))[-1].plan
    assert plan is not None
    assert plan.steps == 3


def test_the_sharding_that_the_job_asks_for() -> None:
    plan = found(job(model={"sharding": {"t0": "table_wise"}}))[-1].plan
    assert plan is not None
    assert {table.name: table.sharding for table in plan.sharding}["t0"] == "table_wise"


def test_the_smallest_group_of_an_elastic_job() -> None:
    plan = found(job(workers={"count": {"min": 3, "max": 9}}))[-1].plan
    assert plan is not None
    assert plan.world_size == 3


_PARQUET = {"source": "parquet", "path": "/no/such", "columns": {"label": "y", "ids": ["a"]}}


def synthetic(**params: Any) -> dict[str, Any]:
    return {"source": "synthetic", "params": params}


@pytest.mark.parametrize(
    ("name", "section", "value", "words"),
    [
        (CheckName.DATA, "data", _PARQUET, "no such file or folder: /no/such"),
        (CheckName.DATA, "data", {"source": "no.such:source"}, "data.source: cannot import 'no.such:source'"),
        (CheckName.DATA, "data", {"source": f"{__name__}:broken_source"}, "data: it raises KeyError: 'shelf'"),
        (CheckName.DATA, "data", synthetic(samples=1), "fewer samples than the 2 workers"),
        (CheckName.MODEL, "model", {"factory": "no.such:model"}, "model.factory: cannot import 'no.such:model'"),
        (CheckName.MODEL, "model", {"params": {"width": 3}}, "model.params.width: unknown field"),
        (CheckName.MODEL, "model", {"factory": f"{__name__}:broken_model"}, "it raises ZeroDivisionError"),
        (CheckName.TABLES, "model", {"sharding": {"nope": "row_wise"}}, "no such table; the model has "),
        (CheckName.TABLES, "data", synthetic(rows=100_000_000), "find no place on 2 workers of 2 GiB each; take "),
    ],
)
def test_a_no_says_what_to_do_and_ends_the_dry_run(
    name: CheckName, section: str, value: dict[str, Any], words: str
) -> None:
    *before, last = found(job(**{section: value}))
    assert all(finding.check.outcome is OK for finding in before)
    assert (last.check.name, last.check.outcome, last.plan) == (name, NO, None)
    assert words in last.check.detail


def test_a_model_that_is_too_large_for_a_dry_run_is_not_checked() -> None:
    *_, last = found(job(model={"factory": f"{__name__}:hungry_model"}))
    assert (last.check.name, last.check.outcome) == (CheckName.MODEL, NOT_CHECKED)
    assert "8 GiB" in last.check.detail


def test_the_memory_of_gpus_is_not_known() -> None:
    *_, last = found(job(workers={"count": 2, "gpus": 1}), {"CPU": 4.0, "GPU": 2.0, "memory": 64.0 * GIB})
    assert (last.check.name, last.check.outcome) == (CheckName.TABLES, NOT_CHECKED)
    assert last.plan is not None
    assert len(last.plan.sharding) == 2


def test_without_room_for_the_workers_tables_have_no_place() -> None:
    *_, last = found(job(workers={"count": 9}))
    assert last.check == Check(
        name=CheckName.TABLES,
        outcome=NOT_CHECKED,
        detail="there is no place for the workers: needs 9 CPUs for 9 workers, the cluster has 4",
    )


def test_workers_share_the_memory_of_their_node() -> None:
    """Two workers find place on the larger node, with 4 GiB for each, and the third on the other one, with 3."""
    nodes = ({"CPU": 1.0, "memory": 3.0 * GIB}, {"CPU": 2.0, "memory": 8.0 * GIB}, {"GPU": 1.0})
    group = group_on(WorkersSpec(count=3), nodes)
    assert (group.world_size, group.local_world_size, group.memory_bytes) == (3, 2, 3 * GIB)
    assert group_on(WorkersSpec(count=1), nodes).memory_bytes == 8 * GIB


def test_findings_are_found_among_what_others_print() -> None:
    first, second = (
        Finding(check=Check(name=name, outcome=OK, detail="ä\nb")) for name in (CheckName.DATA, CheckName.MODEL)
    )
    text = f"noise\n{first.line()}no newline{second.line()}overlane-dry-run {{broken\noverlane-dry-run\n"
    assert list(findings_in(text)) == [first, second]


def limited(code: str) -> subprocess.CompletedProcess[str]:
    script = "from workers.dry_run import limited\n" + textwrap.dedent(code)
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_dry_run_that_hangs_in_native_code_dies_of_its_time() -> None:
    done = limited("""

        with limited(seconds=1):

            sum(range(10**12))
    """)
    assert done.returncode == -signal.SIGALRM


def test_a_dry_run_that_takes_too_much_memory_is_refused_it() -> None:
    done = limited("""
        with limited(memory_bytes=2 * 1024**3):
            try:
                bytearray(4 * 1024**3)
            except MemoryError:
                print("refused")
        bytearray(4 * 1024**3)
        print("unlimited again")
    """)
    assert done.stdout.split("\n")[:2] == ["refused", "unlimited again"], done.stderr


def broken_source(_data: Any) -> None:
    raise KeyError("shelf")


def broken_model(_schema: Schema) -> None:
    raise ZeroDivisionError


def hungry_model(schema: Schema) -> nn.Module:
    # What torch says when the limit is met.
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
