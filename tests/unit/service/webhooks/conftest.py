"""A service that tells a receiver on loopback of every change."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from service.cluster.gateway import RayStatus
from service.settings import Settings
from service.store.tables import deliveries
from service.webhooks.shapes import Webhook
from tests.unit.service.conftest import Plane
from tests.unit.service.webhooks.receiver import Receiver, receiving, webhooks_file

LIFE: list[tuple[str | None, str]] = [(None, "queued"), ("queued", "starting"), ("starting", "succeeded")]


@pytest.fixture
def ops() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def endpoints(ops: Receiver) -> dict[str, dict[str, Any]]:
    """What the webhooks file says; tests may override it."""
    return {"ops": {"url": f"{ops.url}/hooks"}}


@pytest.fixture
def settings(settings: Settings, tmp_path: Path, endpoints: dict[str, dict[str, Any]]) -> Settings:
    return settings.model_copy(update={"webhooks_file": webhooks_file(tmp_path / "webhooks.yaml", endpoints)})


@pytest.fixture
async def plane(plane: Plane) -> AsyncIterator[Plane]:
    # Receivers check that what they are sent is not old.
    plane.clock.time = datetime.now(UTC)
    yield plane
    await plane.services.webhooks.close()


class Pauses:
    """The pauses of a dispatcher, which end when a test says so."""

    def __init__(self, plane: Plane) -> None:
        self._gates: list[asyncio.Event] = []
        self._began = asyncio.Event()
        plane.services.webhooks._sleep = self._sleep

    async def settled(self, count: int) -> None:
        """Wait until so many tasks pause."""
        async with asyncio.timeout(60):
            while len(self._gates) < count:
                self._began.clear()
                await self._began.wait()

    def end(self) -> None:
        """End all pauses."""
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.set()

    async def _sleep(self, _seconds: float) -> None:
        gate = asyncio.Event()
        self._gates.append(gate)
        self._began.set()
        await gate.wait()


async def finished(plane: Plane, **changes: Any) -> str:
    """A job that has succeeded; its id."""
    job_id = await plane.started(**changes)
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(1)
    return job_id


async def shown(plane: Plane, name: str = "ops") -> Webhook:
    [found] = [each for each in (await plane.services.webhooks.overview()).items if each.name == name]
    return found


async def rows(plane: Plane) -> list[dict[str, Any]]:
    async with plane.services.database.read() as connection:
        found = await connection.execute(select(deliveries).order_by(deliveries.c.number))
        return [row._asdict() for row in found]


async def send(plane: Plane, name: str = "ops") -> bool:
    return await asyncio.wait_for(plane.services.webhooks.send_due(name), 60)
