"""Records spans with OpenTelemetry's SDK and sends them to a collector, by OTLP over HTTP.

A thread sends them in batches out of a queue of bounded length, so a collector that is slow or dead costs a request
nothing; what does not fit into the queue is dropped.
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from urllib.parse import urlsplit

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.tracing.settings import TracingSettings
from service.tracing.spans import Kind

log = structlog.get_logger(__name__)

LAST_SPANS_S = 3.0
"""How long the end of the service waits for the collector to take the last spans."""

_HEADER = "traceparent"
_FORMAT = TraceContextTextMapPropagator()


class Recorded:
    """A `Span` of OpenTelemetry's."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def note(self, name: str, value: str | int) -> None:
        self._span.set_attribute(name, value)

    def fail(self, why: str) -> None:
        self._span.set_status(Status(StatusCode.ERROR, why))


class OpenTelemetry:
    """A `Recorder` with the SDK."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("overlane", version("overlane"))

    @contextmanager
    def span(
        self, name: str, kind: Kind, parent: str | None = None, begin: datetime | None = None
    ) -> Iterator[Recorded]:
        above: Context | None = None
        if parent is not None and self.traceparent() is None:
            above = _FORMAT.extract({_HEADER: parent}, Context())
        began_ns = None if begin is None else int(begin.timestamp() * 1e9)
        with self._tracer.start_as_current_span(
            name,
            above,
            SpanKind[kind.name],
            start_time=began_ns,
            # The SDK would keep messages and tracebacks of errors, which may hold anything.
            record_exception=False,
            set_status_on_exception=False,
        ) as recorded:
            span = Recorded(recorded)
            try:
                yield span
            except BaseException as error:
                span.fail(type(error).__name__)
                raise

    def traceparent(self) -> str | None:
        if not get_current_span().get_span_context().is_valid:
            return None
        carrier: dict[str, str] = {}
        _FORMAT.inject(carrier)
        return carrier.get(_HEADER)


class Watched(SpanExporter):
    """An exporter that tells the service's log, once, that spans do not arrive, and once that they do again."""

    def __init__(self, exporter: SpanExporter, collector: str) -> None:
        self._exporter = exporter
        self._collector = collector
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            log.warning("traces_not_exported", collector=self._collector, why="it does not answer, or says no")
        elif self._failing and not failed:
            log.info("traces_exported_again", collector=self._collector)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


@contextmanager
def exporting(settings: TracingSettings) -> Iterator[OpenTelemetry]:
    """A recorder whose spans go to the collector that the environment names."""
    collector = _without_secrets(settings.endpoint or "http://localhost:4318")
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "overlane"}
    resource = Resource.create({**named, "service.version": version("overlane")})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    with _quiet():
        provider.add_span_processor(BatchSpanProcessor(Watched(OTLPSpanExporter(), collector)))
        log.info("traces_on", collector=collector)
        yield OpenTelemetry(provider)
        _end(provider)


def _end(provider: TracerProvider) -> None:
    """Send what is left, for a while. The SDK alone would wait half a minute for a collector that is dead."""
    last = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
    last.start()
    last.join(LAST_SPANS_S)
    if last.is_alive():
        log.warning("last_traces_given_up", after_s=LAST_SPANS_S)


@contextmanager
def _quiet() -> Iterator[None]:
    """The SDK's own log would stand between the lines of ours, and repeat what a collector answers."""
    logger = logging.getLogger("opentelemetry")
    handler = logging.NullHandler()
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def _without_secrets(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.hostname}" + ("" if parts.port is None else f":{parts.port}")
