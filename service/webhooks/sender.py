"""One attempt to hand a message to an endpoint, over HTTP."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version
from urllib.parse import urlsplit

import httpx

from service.addresses import is_loopback
from service.webhooks.endpoints import Endpoint
from service.webhooks.messages import signed_headers

TIMEOUT_S = 15.0
"""For one attempt as a whole, until its answer begins."""

# It would write down whole addresses, with what is secret in them.
logging.getLogger("httpx").setLevel(logging.WARNING)


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt; `error` is None if the message was taken, `status` if no answer came."""

    status: int | None
    error: str | None

    @property
    def gone(self) -> bool:
        """Whether the endpoint wants nothing any more."""
        return self.status == HTTPStatus.GONE


class Sender:
    """Sends to one endpoint, over connections of its own. Nothing of an answer but its status is read."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._url = endpoint.url.get_secret_value()
        # A proxy of the environment leads away from this machine, so it cannot lead to loopback.
        proxied = not is_loopback(urlsplit(self._url).hostname or "")
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        self._http = httpx.AsyncClient(
            follow_redirects=False, timeout=TIMEOUT_S, trust_env=proxied, cookies=no_cookies,
            headers={"Content-Type": "application/json", "User-Agent": f"overlane/{version('overlane')}"},
        )  # fmt: skip

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, message_id: str, body: str, at: datetime) -> Outcome:
        """Sign the message for the time `at` and send it."""
        headers = signed_headers(message_id, body, self._endpoint.secrets, at)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await self._post(body.encode(), headers)
        except (TimeoutError, httpx.TimeoutException):
            return Outcome(None, f"no answer within {TIMEOUT_S:g} s")
        except (httpx.HTTPError, OSError) as error:
            return Outcome(None, f"{type(error).__name__}: {error}")
        return Outcome(status, _error(status))

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> int:
        async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
            return response.status_code


def _error(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"HTTP {status}; redirects are not followed: put the new address into the webhooks file"
    if status == HTTPStatus.GONE:
        return "HTTP 410: the endpoint is gone; a test that it takes, or another address in the file, ends that"
    return f"HTTP {status}"
