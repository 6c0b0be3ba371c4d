"""A span for each request."""

from asgi_correlation_id import correlation_id
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.tracing import spans

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})


class TracedRequests:
    """Names requests by the template of their route, which holds nothing that a client has sent.

    Goes inside of what gives requests their ids.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not spans.recording():
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        with spans.request(method, Headers(scope=scope).get("traceparent")) as span:
            span.note("http.request.method", method)
            if (request_id := correlation_id.get()) is not None:
                span.note("overlane.request_id", request_id)

            async def watched(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.note("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            try:
                await self._app(scope, receive, watched)
            finally:
                if isinstance(route := scope.get("route"), Route):
                    span.rename(f"{method} {route.path}")
                    span.note("http.route", route.path)
