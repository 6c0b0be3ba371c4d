"""Where the service listens by default, and which addresses lie on this machine. The command line needs no more."""

import ipaddress

DEFAULT_PORT = 8420


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
