"""Traces for as long as the control plane runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from service.tracing import spans
from service.tracing.settings import TracingSettings


@contextmanager
def traces() -> Iterator[None]:
    """Record spans within the block if the environment asks for them. Raises `ValidationError` if it asks wrongly."""
    settings = TracingSettings()
    if not settings.on:
        yield
        return
    # Only who has a collector pays for loading this.
    from service.tracing.otlp import exporting

    with exporting(settings) as recorder:
        spans.record_with(recorder)
        try:
            yield
        finally:
            spans.record_with(None)
