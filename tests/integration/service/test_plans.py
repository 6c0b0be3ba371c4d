"""Plans made by a real dry run on an embedded Ray."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.client import Client
from service.cluster.gateway import HttpRayGateway, RayRun
from service.models import Plan
from service.server import control_plane
from service.settings import Settings
from workers.plans import CheckName, Outcome


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def plane(home: Path) -> Iterator[Client]:
    settings = Settings(host="127.0.0.1", port=0, home=home, cluster_cpus=2, entrypoint=None, ray_address=None)
    with control_plane(settings) as running, Client(running.url) as client:
        yield client


def planned(plane: Client, tmp_path: Path, **changes: Any) -> Plan:
    file = tmp_path / "job.json"
    data = {"source": "synthetic", "params": {"samples": 4096, "rows": 1000}}
    file.write_text(json.dumps({"name": "tiny", "data": data, "training": {"batch_size": 512}} | changes))
    return plane.plan(file)


def runs(plane: Client, home: Path) -> list[RayRun]:
    """What Ray knows of."""

    async def ask() -> list[RayRun]:
        gateway = HttpRayGateway(plane.cluster().ray_address, (home / "ray" / "token").read_text())
        try:
            return await gateway.runs()
        finally:
            await gateway.close()

    return asyncio.run(ask())


def test_a_job_that_can_run(plane: Client, home: Path, tmp_path: Path) -> None:
    plan = planned(plane, tmp_path)
    assert {check.name: check.outcome for check in plan.checks} == dict.fromkeys(CheckName, Outcome.OK), plan
    assert plan.training is not None
    assert (plan.training.steps, plan.training.world_size) == (4, 2)
    assert {(table.rows, table.sharding, table.ranks) for table in plan.training.sharding} == {
        (1000, "row_wise", (0, 1))
    }
    assert runs(plane, home) == []
    assert plane.jobs().items == []


def test_tables_that_are_too_large_for_the_memory_of_the_node(plane: Client, home: Path, tmp_path: Path) -> None:
    data = {"source": "synthetic", "params": {"rows": 2_000_000_000}}
    plan = planned(plane, tmp_path, data=data)
    [tables] = [check for check in plan.checks if check.name is CheckName.TABLES]
    assert (plan.outcome, tables.outcome, plan.training) == (Outcome.NO, Outcome.NO, None)
    assert "find no place on 2 workers of " in tables.detail
    assert runs(plane, home) == []
