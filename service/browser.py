"""What keeps a web page of somebody else from using the service through the browser of the person in front of it.

Loopback alone does not: any page may send requests to it, and a name that resolves to 127.0.0.1 makes it look like the
page's own origin.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.addresses import is_loopback
from service.answers import answer_of
from service.problems import Problem, ProblemType

# The page consists of scripts, styles, an icon and requests of our own, and of nothing else.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ANSWER_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class BrowserGuard:
    """Refuses hosts and origins that are not ours, and tells browsers to load nothing from elsewhere."""

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str]) -> None:
        self._app = app
        self._allowed_hosts = frozenset(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(ANSWER_HEADERS)
            await send(message)

        refusal = self._refusal(Headers(scope=scope))
        answer = self._app if refusal is None else answer_of(refusal, scope["path"])
        await answer(scope, receive, guarded)

    def _refusal(self, headers: Headers) -> Problem | None:
        asked = headers.get("host", "")
        if not self._ours(f"//{asked}"):
            detail = f"Host {asked!r} is not this service; add it to OVERLANE_ALLOWED_HOSTS if it is"
            return Problem(ProblemType.FOREIGN_ORIGIN, detail)
        origin = headers.get("origin")
        if origin is not None and not self._ours(origin):
            detail = f"Origin {origin!r} may not use this service; add its host to OVERLANE_ALLOWED_HOSTS if it may"
            return Problem(ProblemType.FOREIGN_ORIGIN, detail)
        return None

    def _ours(self, address: str) -> bool:
        try:
            host = urlsplit(address).hostname or ""
        except ValueError:
            return False
        return host in self._allowed_hosts or is_loopback(host)
