"""The link as a rank sees it."""

import time
from pathlib import Path

from benchmarks.testbed.layout import INTERFACE

# What counts Ethernet frames sees of full TCP segments: 1514 bytes for 1448 bytes of payload.
FRAMING = 1514 / 1448
_QUIET_S, _POLL_S = 0.1, 0.02


def await_idle() -> None:
    """Wait until this node has sent nothing for a while: what a contestant has in flight must not slow the next one."""
    counter = Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes")
    sent, since = counter.read_text(), time.monotonic()
    while time.monotonic() - since < _QUIET_S:
        time.sleep(_POLL_S)
        if (now := counter.read_text()) != sent:
            sent, since = now, time.monotonic()


def communication_ms(bytes_sent: float, bytes_per_ms: float) -> float:
    """How long a link is busy with so many bytes of payload."""
    return bytes_sent * FRAMING / bytes_per_ms
