"""The service's own log: one line per event, for people on a terminal and as JSON everywhere else."""

import logging
import sys
from typing import TextIO

import structlog

from service.tracing.spans import with_trace_id
from service.traffic.request_ids import with_request_id


def configure(stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
    """Send structlog to `stream`. Secrets never become event values, so nothing is filtered here."""
    renderer: list[structlog.typing.Processor]
    if stream.isatty():
        # The default would print the values of local variables, and secrets with them.
        renderer = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            with_request_id,
            with_trace_id,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
    )
