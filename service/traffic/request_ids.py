"""The id that a request carries through answers and log lines."""

import re

from asgi_correlation_id import correlation_id
from structlog.typing import EventDict, WrappedLogger

REQUEST_ID_HEADER = "X-Request-ID"

_WELL_FORMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,127}")


def is_well_formed(request_id: str) -> bool:
    """8 to 128 letters, digits and `._-`: what can neither break a line of the log nor a header."""
    return _WELL_FORMED.fullmatch(request_id) is not None


def with_request_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Structlog's processor that adds `request_id` to what is logged within a request."""
    if (request_id := correlation_id.get()) is not None:
        event["request_id"] = request_id
    return event
