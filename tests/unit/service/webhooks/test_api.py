"""How operators see webhooks: routes, metrics, the command, and what none of them shows."""

import io
import json
import logging
from typing import Any

import httpx
import pytest
import structlog
from typer.testing import CliRunner

from service import cli, log
from service.client import Client
from service.problems import ProblemType
from tests.unit.service.conftest import Plane
from tests.unit.service.test_api import problem
from tests.unit.service.webhooks.conftest import finished, send
from tests.unit.service.webhooks.receiver import SECRET, Receiver

pytestmark = pytest.mark.anyio


@pytest.fixture
def endpoints(ops: Receiver) -> dict[str, dict[str, Any]]:
    address = ops.url.replace("http://", "http://user:hunter2@")
    return {
        "ops": {"url": f"{address}/hooks?key=hunter3"},
        "ads": {"url": ops.url, "project": "ads", "states": ["lost", "failed"]},
    }


def moment(plane: Plane) -> str:
    return plane.clock.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def test_how_they_get_on(plane: Plane, ops: Receiver) -> None:
    await plane.submit()
    await send(plane)
    ops.status = 503
    await plane.submit()
    await send(plane)
    answer = await plane.http.get("/v1/webhooks")
    shown, ads = answer.json()["items"]
    assert shown == {
        "name": "ops", "url": f"{ops.url}/hooks", "project": None, "states": None, "gone": False, "pending": 1,
        "delivered": 1, "failed_attempts": 1, "given_up": 0, "last_success_at": moment(plane),
        "last_error_at": moment(plane), "last_error": "HTTP 503",
    }  # fmt: skip
    assert (ads["name"], ads["project"], ads["states"], ads["pending"]) == ("ads", "ads", ["failed", "lost"], 0)
    assert ops.received[0].path == "/hooks?key=hunter3"
    assert ops.received[0].headers["authorization"].startswith("Basic ")
    lines = (await plane.http.get("/metrics")).text.splitlines()
    for line in (
        'overlane_webhook_pending{endpoint="ops"} 1.0',
        'overlane_webhook_delivered_total{endpoint="ops"} 1.0',
        'overlane_webhook_failed_attempts_total{endpoint="ops"} 1.0',
        'overlane_webhook_given_up_total{endpoint="ops"} 0.0',
        'overlane_webhook_gone{endpoint="ops"} 0.0',
        'overlane_webhook_pending{endpoint="ads"} 0.0',
    ):
        assert line in lines
    assert 'overlane_jobs{state="queued"} 2.0' in lines


async def test_a_test_message(plane: Plane, ops: Receiver) -> None:
    answer = await plane.http.post("/v1/webhooks/ops/ping")
    [message] = ops.received
    assert answer.json() == {"name": "ops", "message_id": message.id, "status": 204, "error": None}
    assert message.verified() == {
        "type": "webhook.ping", "timestamp": moment(plane), "data": {"endpoint": "ops"},
    }  # fmt: skip
    ops.status = 500
    answer = await plane.http.post("/v1/webhooks/ops/ping")
    assert (answer.status_code, answer.json()["status"], answer.json()["error"]) == (200, 500, "HTTP 500")
    assert len(ops.received) == 2, "it is not sent again"
    document = problem(await plane.http.post("/v1/webhooks/nobody/ping"), ProblemType.NOT_FOUND)
    assert document["detail"] == "no webhook has the name 'nobody'; known are ops, ads"


async def test_nothing_secret_is_logged_or_answered(
    plane: Plane, ops: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    before, written, answers = structlog.get_config(), io.StringIO(), []
    log.configure(written, logging.DEBUG)
    try:
        for status in (204, 302, 500, 410):
            ops.status = status
            await finished(plane)
            await send(plane)
            plane.clock.forward(30 * 3600)
            answers.append(await plane.http.post("/v1/webhooks/ops/ping"))
        answers += [await plane.http.get(path) for path in ("/v1/webhooks", "/metrics", "/openapi.json", "/v1/audit")]
    finally:
        structlog.configure(**before)
    everything = written.getvalue() + caplog.text + "".join(f"{each.headers}{each.text}" for each in answers)
    assert "webhook_not_taken" in everything
    assert "webhook_gone" in everything
    for secret in (SECRET, SECRET.removeprefix("whsec_"), "hunter2", "hunter3"):
        assert secret not in everything


OPS = {
    "name": "ops", "url": "https://hooks.example/overlane", "project": None, "states": None, "gone": False,
    "pending": 3, "delivered": 41, "failed_attempts": 2, "given_up": 1, "last_success_at": None,
    "last_error_at": "2026-01-02T03:04:05.000Z", "last_error": "HTTP 503",
}  # fmt: skip


async def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, error = [], "HTTP 503"

    def service(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path}")
        if request.method == "POST":
            return httpx.Response(200, json={"name": "ops", "message_id": "msg_1", "status": 204, "error": error})
        return httpx.Response(200, json={"items": [OPS]})

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli.app, ["webhooks", *arguments])
        return result.exit_code, result.output

    monkeypatch.setattr(cli, "Client", lambda url, token: Client(url, token, httpx.MockTransport(service)))
    status, text = run()
    assert status == 0
    for words in ("ops", "https://hooks.example/overlane", "3", "41", "2026-01-02 03:04:05Z HTTP 503"):
        assert words in text
    status, text = run("--json")
    assert (status, json.loads(text)) == (0, {"items": [OPS]})
    assert run("--ping", "ops") == (1, "overlane: ops: HTTP 503\n")
    error = None  # type: ignore[assignment]
    assert run("--ping", "ops") == (0, "ops took msg_1: HTTP 204\n")
    status, text = run("--ping", "ops", "--json")
    assert (status, json.loads(text)["message_id"]) == (0, "msg_1")
    assert asked == ["GET /v1/webhooks"] * 2 + ["POST /v1/webhooks/ops/ping"] * 3
