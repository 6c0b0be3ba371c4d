"""What traces say: one trace from the submission of a job to its end."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import ValidationError
from typer.testing import CliRunner

from service import cli, log
from service.cluster.gateway import RayStatus
from service.settings import faults_of
from service.tracing import spans
from service.tracing.settings import TracingSettings
from tests.unit.service.conftest import JOB, Plane
from tests.unit.service.fakes import sample
from tests.unit.service.spans import Kept, kept

TRACE, CALLER = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
HEADER = {"traceparent": f"00-{TRACE:032x}-{CALLER:016x}-01"}


@pytest.fixture
def recorded() -> Iterator[Kept]:
    with kept() as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.mark.anyio
async def test_from_submission_to_the_end_is_one_trace(plane: Plane, recorded: Kept) -> None:
    answer = await plane.http.post("/v1/jobs", json=JOB, headers=HEADER)
    job_id = answer.json()["id"]
    await plane.rounds(2)
    plane.ray.says(job_id, RayStatus.RUNNING)
    await plane.report(job_id, sample(0, 0), sample(0, 1))
    await plane.rounds(2)
    plane.ray.says(job_id, RayStatus.SUCCEEDED)
    await plane.rounds(2)
    assert recorded.tree(CALLER, TRACE) == {
        "POST /v1/jobs": {
            "ray resources": {},
            "database write": {},
            "job queued": {"database write": {}},
            "job submitted to ray": {"database write": {}, "ray submit": {}},
            "job started": {"database write": {}},
            "job ended": {"ray logs": {}, "database write": {}},
        }
    }
    post = recorded.named("POST /v1/jobs")
    assert post.kind is SpanKind.SERVER
    assert dict(post.attributes or {}) == {
        "http.request.method": "POST", "http.route": "/v1/jobs", "http.response.status_code": 202,
        "overlane.request_id": answer.headers["X-Request-ID"],
    }  # fmt: skip
    assert (recorded.named("job ended").attributes or {})["overlane.job_id"] == job_id
    assert recorded.named("ray submit").kind is SpanKind.CLIENT
    queued = recorded.named("job queued").start_time or 0
    assert queued == int(plane.clock.time.timestamp() * 1e9), "a job is queued from its submission on"
    assert post.context is not None
    assert plane.ray.submissions[job_id].env["TRACEPARENT"] == f"00-{TRACE:032x}-{post.context.span_id:016x}-01"


@pytest.mark.anyio
async def test_rounds_in_which_nothing_happens_leave_no_spans(plane: Plane, recorded: Kept) -> None:
    job_id = await plane.started()
    plane.ray.says(job_id, RayStatus.RUNNING)
    await plane.rounds(1)
    before = len(recorded.all)
    await plane.rounds(5)
    assert len(recorded.all) == before


@pytest.mark.anyio
async def test_the_trace_goes_on_after_the_service_has_been_started_again(plane: Plane, recorded: Kept) -> None:
    """What is kept with the job is enough; and a job from a time without traces has none."""
    spans.record_with(None)
    old = await plane.submit(workers={"count": 1})
    with kept() as first:
        await plane.http.post("/v1/jobs", json=JOB | {"workers": {"count": 1}}, headers=HEADER)
        post = first.named("POST /v1/jobs").context
    with kept() as later:
        await plane.rounds(2)
        assert "TRACEPARENT" not in plane.ray.submissions[old].env
        assert post is not None
        assert "job queued" in later.tree(post.span_id, TRACE)


@pytest.mark.anyio
@pytest.mark.parametrize("header", ["", "00-0-0-01", "nonsense", f"00-{TRACE:032x}-{0:016x}-01", "00-" + "f" * 5000])
async def test_a_header_that_is_none_begins_a_new_trace(plane: Plane, recorded: Kept, header: str) -> None:
    await plane.http.get("/v1/jobs", headers={"traceparent": header})
    span = recorded.named("GET /v1/jobs")
    assert span.parent is None
    assert span.context is not None
    assert span.context.trace_id != TRACE


@pytest.mark.anyio
async def test_a_caller_that_is_not_sampled_is_not_recorded(plane: Plane, recorded: Kept) -> None:
    await plane.http.post("/v1/jobs", json=JOB, headers={"traceparent": f"00-{TRACE:032x}-{CALLER:016x}-00"})
    await plane.rounds(2)
    assert recorded.all == []


@pytest.mark.anyio
async def test_failures_are_marked_with_a_word(plane: Plane, recorded: Kept) -> None:
    plane.ray.away = True
    assert (await plane.http.post("/v1/jobs", json=JOB)).status_code == 503
    post, asked = recorded.named("POST /v1/jobs"), recorded.named("ray resources")
    assert (post.status.status_code, post.status.description) == (StatusCode.ERROR, "503")
    assert (asked.status.status_code, asked.status.description) == (StatusCode.ERROR, "RayUnavailableError")
    assert asked.events == ()
    await plane.http.get("/v1/jobs/none")
    assert recorded.named("GET /v1/jobs/{job_id}").status.status_code is StatusCode.UNSET


def test_log_lines_carry_the_trace(recorded: Kept) -> None:
    before, written = structlog.get_config(), io.StringIO()
    log.configure(written)
    try:
        with spans.request("GET", HEADER["traceparent"]):
            structlog.get_logger().info("within")
        structlog.get_logger().info("outside")
    finally:
        structlog.configure(**before)
    within, outside = (json.loads(line) for line in written.getvalue().splitlines())
    assert within["trace_id"] == f"{TRACE:032x}"
    assert "trace_id" not in outside


_SCRIPT = """
import sys
import service.server
from service.tracing import spans
from service.tracing.start import traces
with traces():
    # FastAPI loads the part of OpenTelemetry that does nothing by itself.
    loaded = {"opentelemetry.sdk", "opentelemetry.exporter", "google.protobuf"} & set(sys.modules)
    print(spans.recording(), bool(loaded))
"""


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({}, "False False"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "False False"),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "False False"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "True True"),
    ],
)
def test_nothing_is_loaded_unless_it_is_configured(environment: dict[str, str], shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env=os.environ | environment,
    )
    assert done.stdout.strip().splitlines()[-1] == shown


ON = {"OTEL_TRACES_EXPORTER": "otlp"}


@pytest.mark.parametrize(
    ("environment", "fault"),
    [
        ({"OTEL_TRACES_EXPORTER": "otpl"}, "OTEL_TRACES_EXPORTER: otlp or none"),
        ({"OTEL_SDK_DISABLED": "yes"}, "OTEL_SDK_DISABLED: true or false"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT: not an address such as http"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://[::1"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: not an address"),
        (ON | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL: http/protobuf"),
        (ON | {"OTEL_EXPORTER_OTLP_HEADERS": "s3cret"}, "OTEL_EXPORTER_OTLP_HEADERS: write name=value"),
        (ON | {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "OTEL_EXPORTER_OTLP_TIMEOUT: seconds, above 0"),
        (ON | {"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"}, "OTEL_EXPORTER_OTLP_COMPRESSION: gzip or deflate or none"),
        (ON | {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/none.pem"}, "OTEL_EXPORTER_OTLP_CERTIFICATE: no such file"),
        (ON | {"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER: always_on or"),
        (ON | {"OTEL_TRACES_SAMPLER": "traceidratio"}, "OTEL_TRACES_SAMPLER_ARG: a share of the traces"),
        (ON | {"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "OTEL_BSP_MAX_QUEUE_SIZE: a whole number above 0"),
    ],
)
def test_wrong_settings_are_named_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], fault: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError) as caught:
        TracingSettings()
    told = faults_of(caught.value)
    assert fault in told
    assert "s3cret" not in told


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces"}, True),
        (ON, True),
        (ON | {"OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False),
        (ON | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, True),
        (ON | {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}, True),
    ],
)
def test_when_traces_are_wanted(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], on: bool) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert TracingSettings().on is on


def test_wrong_settings_are_bad_usage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "jaeger")
    ended = CliRunner().invoke(cli.app, ["serve", "--home", str(tmp_path / "home"), "--port", "0"])
    assert (ended.exit_code, ended.stderr) == (2, "overlane: OTEL_TRACES_EXPORTER: otlp or none\n")
    assert not (tmp_path / "home").exists()
