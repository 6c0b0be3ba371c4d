"""What OpenTelemetry's own environment variables ask of the service, checked before anything starts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_SAMPLERS = ("always_on", "always_off", "traceidratio")
_KNOWN = {
    "traces_exporter": ("otlp", "none"),
    "sdk_disabled": ("true", "false"),
    "traces_sampler": (*_SAMPLERS, *(f"parentbased_{name}" for name in _SAMPLERS)),
    "protocol": ("http/protobuf",),
    "compression": ("gzip", "deflate", "none"),
}
_WHOLE = ("bsp_max_queue_size", "bsp_max_export_batch_size", "bsp_schedule_delay")
_FILES = ("certificate", "client_key", "client_certificate")
_EXPORTER = "exporter_otlp_"
_OF_TRACES = "exporter_otlp_traces_"


class TracingSettings(BaseSettings):
    """The variables that decide about traces, with their names but for `OTEL_`. An empty one counts as not set.

    Each of `exporter_otlp_*` is overruled by its `exporter_otlp_traces_*`. OpenTelemetry reads the values itself, and
    would only log what is wrong with them.
    """

    model_config = SettingsConfigDict(env_prefix="OTEL_", frozen=True, extra="ignore", env_ignore_empty=True)

    sdk_disabled: str | None = None
    traces_exporter: str | None = None
    traces_sampler: str | None = None
    traces_sampler_arg: str | None = None
    bsp_max_queue_size: str | None = None
    bsp_max_export_batch_size: str | None = None
    bsp_schedule_delay: str | None = None
    exporter_otlp_endpoint: str | None = None
    exporter_otlp_protocol: str | None = None
    exporter_otlp_headers: str | None = None
    exporter_otlp_timeout: str | None = None
    exporter_otlp_compression: str | None = None
    exporter_otlp_certificate: str | None = None
    exporter_otlp_client_key: str | None = None
    exporter_otlp_client_certificate: str | None = None
    exporter_otlp_traces_endpoint: str | None = None
    exporter_otlp_traces_protocol: str | None = None
    exporter_otlp_traces_headers: str | None = None
    exporter_otlp_traces_timeout: str | None = None
    exporter_otlp_traces_compression: str | None = None
    exporter_otlp_traces_certificate: str | None = None
    exporter_otlp_traces_client_key: str | None = None
    exporter_otlp_traces_client_certificate: str | None = None

    @model_validator(mode="after")
    def _usable(self) -> Self:
        faults = [f"OTEL_{name.upper()}: {fault}" for name, fault in self._faults()]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def on(self) -> bool:
        """Whether traces are wanted."""
        if (self.sdk_disabled or "").lower() == "true":
            return False
        if self.traces_exporter is not None:
            return self.traces_exporter == "otlp"
        return self.endpoint is not None

    @property
    def endpoint(self) -> str | None:
        """The collector that is named, if one is."""
        return self.exporter_otlp_traces_endpoint or self.exporter_otlp_endpoint

    def _faults(self) -> Iterator[tuple[str, str]]:
        given = {name: value for name, value in self if value is not None}
        for name in ("sdk_disabled", "traces_exporter"):
            if name in given:
                yield from _not_one_of(name, name, given[name])
        if not self.on:
            return
        for name, value in given.items():
            # What is overruled does not matter.
            specific = name.replace(_EXPORTER, _OF_TRACES)
            if name.startswith(_EXPORTER) and not name.startswith(_OF_TRACES) and specific in given:
                continue
            yield from _faults_of(name, value)
        if (given.get("traces_sampler") or "").endswith("traceidratio") and not _between(given, 0, 1):
            yield "traces_sampler_arg", "a share of the traces from 0 to 1, such as 0.1"


def _faults_of(name: str, value: str) -> Iterator[tuple[str, str]]:
    """What is wrong with a value. It may be a secret, or have one in it, and is not repeated."""
    kind = name.removeprefix(_OF_TRACES).removeprefix(_EXPORTER)
    if kind == "endpoint" and not _is_address(value):
        yield name, "not an address such as http://collector:4318"
    elif kind in ("protocol", "compression", "traces_sampler"):
        yield from _not_one_of(kind, name, value)
    elif kind == "headers" and not all("=" in pair for pair in value.split(",") if pair.strip()):
        yield name, "write name=value, several separated by commas"
    elif kind == "timeout" and not _is_positive(value):
        yield name, "seconds, above 0"
    elif name in _WHOLE and not (value.isdecimal() and int(value) > 0):
        yield name, "a whole number above 0"
    elif kind in _FILES and not Path(value).is_file():
        yield name, "no such file"


def _not_one_of(kind: str, name: str, value: str) -> Iterator[tuple[str, str]]:
    if value.lower() not in _KNOWN[kind]:
        yield name, f"{' or '.join(_KNOWN[kind])}"


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _between(given: dict[str, str], least: float, most: float) -> bool:
    try:
        return least <= float(given.get("traces_sampler_arg", "")) <= most
    except ValueError:
        return False
