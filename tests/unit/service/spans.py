"""Spans kept in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.tracing import spans
from service.tracing.otlp import OpenTelemetry


class Kept:
    """The spans that have ended since."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        [span] = [span for span in self.all if span.name == name]
        return span

    def tree(self, parent: int, trace: int) -> dict[str, object]:
        """What lies below the span with the id `parent` of a trace, by name; those of one name are one."""
        children = sorted((span for span in self.all if _parent(span) == parent and _trace(span) == trace), key=_begin)
        found: dict[str, object] = {}
        for span in children:
            assert span.context is not None
            found[span.name] = self.tree(span.context.span_id, trace)
        return found

    @property
    def text(self) -> str:
        return "".join(span.to_json() for span in self.all)


def _parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def _trace(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def _begin(span: ReadableSpan) -> int:
    return span.start_time or 0


@contextmanager
def kept() -> Iterator[Kept]:
    """Record spans within the block."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans.record_with(OpenTelemetry(provider))
    try:
        yield Kept(exporter)
    finally:
        spans.record_with(None)
        provider.shutdown()
