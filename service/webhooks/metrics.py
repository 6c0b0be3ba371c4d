"""Prometheus figures of the endpoints."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from service.webhooks.shapes import Webhook

_LABELS = ("endpoint",)


class _Snapshot(Collector):
    """The figures of one moment."""

    def __init__(self, webhooks: Sequence[Webhook]) -> None:
        self._webhooks = webhooks

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        pending = GaugeMetricFamily("overlane_webhook_pending", "Messages that wait", labels=_LABELS)
        gone = GaugeMetricFamily("overlane_webhook_gone", "1 for an endpoint that has answered 410", labels=_LABELS)
        delivered = CounterMetricFamily("overlane_webhook_delivered", "Messages that were taken", labels=_LABELS)
        failed = CounterMetricFamily("overlane_webhook_failed_attempts", "Attempts that failed", labels=_LABELS)
        given_up = CounterMetricFamily("overlane_webhook_given_up", "Messages that were given up", labels=_LABELS)
        for each in self._webhooks:
            pending.add_metric([each.name], each.pending)
            gone.add_metric([each.name], each.gone)
            delivered.add_metric([each.name], each.delivered)
            failed.add_metric([each.name], each.failed_attempts)
            given_up.add_metric([each.name], each.given_up)
        yield from (pending, gone, delivered, failed, given_up)


def exposition(webhooks: Sequence[Webhook]) -> bytes:
    """The text that Prometheus scrapes; nothing without endpoints."""
    if not webhooks:
        return b""
    registry = CollectorRegistry()
    registry.register(_Snapshot(webhooks))
    return generate_latest(registry)
