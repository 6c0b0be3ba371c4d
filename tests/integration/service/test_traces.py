"""Spans on their way to a collector: one that takes them, one that is not there, one that never answers."""

import gzip
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span
from structlog.testing import capture_logs

from service.tracing import otlp, spans
from service.tracing.start import traces

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Collector:
    """An OTLP/HTTP receiver on loopback. While `open` is not set, it takes requests and answers none."""

    open: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    taken: list[ResourceSpans] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def spans(self) -> list[Span]:
        return [span for resource in self.taken for scope in resource.scope_spans for span in scope.spans]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            found.asked.set()
            found.open.wait()
            found.headers.append({"path": self.path, **dict(self.headers)})
            found.taken.extend(ExportTraceServiceRequest.FromString(body).resource_spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    found.open.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_collector_is_sent_protobuf_over_http(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=s3cret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    collector.open.set()
    with capture_logs() as logged, traces(), spans.request("GET", HEADER) as span:
        span.rename("GET /v1/jobs")
        with spans.within("database read"):
            pass
    by_name = {span.name: span for span in collector.spans}
    assert sorted(by_name) == ["GET /v1/jobs", "database read"]
    read, request = by_name["database read"], by_name["GET /v1/jobs"]
    assert request.trace_id.hex() == read.trace_id.hex() == HEADER.split("-")[1]
    assert request.parent_span_id.hex() == HEADER.split("-")[2]
    assert read.parent_span_id == request.span_id
    assert request.kind == Span.SPAN_KIND_SERVER
    [resource] = collector.taken
    attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert attributes["service.name"] == "overlane"
    assert not {name for name in attributes if name.startswith(("process.", "host."))}
    assert collector.headers[0]["path"] == "/v1/traces"
    assert collector.headers[0]["x-key"] == "s3cret"
    assert "s3cret" not in str(logged)
    assert not spans.recording()


def test_a_collector_that_never_answers_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> None:
    """It is asked once and holds on to that. Spans fill the queue and the rest are dropped; the end does not wait."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    monkeypatch.setattr(otlp, "LAST_SPANS_S", 0.2)
    with capture_logs() as logged, traces():
        for _ in range(8):
            with spans.request("GET", None):
                pass
        assert collector.asked.wait(60)
        for _ in range(1000):
            with spans.request("GET", None):
                pass
    assert not collector.open.is_set(), "everything above happened while it held on"
    assert [line["event"] for line in logged] == ["traces_on", "last_traces_given_up"]
    assert collector.taken == []


def test_a_collector_that_is_not_there_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        # Bound and not listening: nobody else can be there.
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://user:s3cret@127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        monkeypatch.setattr(otlp, "LAST_SPANS_S", 60.0)
        with capture_logs() as logged, traces():
            for _ in range(3):
                with spans.request("GET", None):
                    pass
    told = [line["event"] for line in logged]
    assert told == ["traces_on", "traces_not_exported"]
    assert "s3cret" not in str(logged)
    assert capfd.readouterr().err == "", "the SDK's own lines would stand between those of the service"
