"""Nothing in a span that a client or a job keeps to itself."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cluster.gateway import RayUnavailableError
from service.security.roles import NEEDS
from service.settings import Settings
from tests.unit.service.callers import Callers
from tests.unit.service.conftest import JOB, Plane
from tests.unit.service.spans import Kept, kept
from tests.unit.service.test_secrecy import secrets_of

SECRET = "hunter2"


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path / "tokens.yaml")


@pytest.fixture
def settings(settings: Settings, callers: Callers) -> Settings:
    return settings.model_copy(update={"tokens_file": callers.file})


@pytest.fixture
def recorded() -> Iterator[Kept]:
    with kept() as found:
        yield found


@pytest.mark.anyio
async def test_no_token_query_body_or_message_in_spans(
    plane: Plane, callers: Callers, recorded: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every route, asked by everybody, with a secret wherever a client can put one."""
    ci = callers.headers("ci")
    spec = JOB | {"name": SECRET, "queue": {"project": "ranking"}}
    job_id = (await plane.http.post("/v1/jobs", json=spec, headers=ci | {"Idempotency-Key": SECRET})).json()["id"]
    await plane.rounds(2)
    report = {"Authorization": f"Bearer {plane.ray.token(job_id)}"}
    await plane.http.post(f"/internal/v1/jobs/{job_id}/reports", content=f"{{{SECRET}", headers=report)
    hidden = {"X-Secret": SECRET, "Cookie": SECRET, "User-Agent": SECRET, "tracestate": f"vendor={SECRET}"}
    for name in callers.tokens:
        for route in NEEDS:
            method, path = route.split(" ")
            for of_job in (job_id, SECRET):
                if "events" not in path:
                    url = f"{path.replace('{job_id}', of_job)}?cursor={SECRET}&steps={SECRET}&token={SECRET}"
                    await plane.http.request(method, url, headers=callers.headers(name) | hidden)
    await plane.http.get(f"/{SECRET}", headers=ci)
    await plane.http.request(SECRET.upper(), "/v1/jobs", headers=ci)

    async def broken() -> None:
        raise RayUnavailableError(SECRET)

    async def broken_inside(*_arguments: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(plane.ray, "resources", broken)
    await plane.http.post("/v1/jobs", json=spec, headers=ci)
    monkeypatch.setattr(plane.services.jobs, "get", broken_inside)
    assert (await plane.http.get(f"/v1/jobs/{job_id}", headers=ci)).status_code == 500
    text = recorded.text
    for told in ("POST /v1/jobs", "GET /v1/jobs/{job_id}", "ray submit", "RayUnavailableError", job_id, "_OTHER"):
        assert told in text
    assert SECRET not in text.lower()
    for whose, secret in secrets_of(plane, callers).items():
        assert secret not in text, whose


_SCRIPT = """
import asyncio, sys
from pathlib import Path
import httpx
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from service.app import create_app
from service.settings import Settings
from tests.unit.service.fakes import FakeRay

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
app = create_app(Settings(home=Path(sys.argv[1])), FakeRay())

async def ask():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        print((await http.get("/nothing?secret=hunter2")).status_code)

asyncio.run(ask())
print([span.to_json() for span in exporter.get_finished_spans()])
"""


def test_the_spans_of_the_framework_itself_are_off(tmp_path: Path) -> None:
    """They hold queries, and whoever sets a provider for a model's code or for Ray would send them off."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=300,
        env=os.environ | {"FASTAPI_OTEL_AUTO_CONFIGURE": "true"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "404\n[]\n"), done.stderr
