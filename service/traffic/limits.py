"""How large a request may be, and how long it may take."""

import asyncio

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.answers import answer_of
from service.problems import Problem, ProblemType

MAX_URL_BYTES = 8 * 1024
MAX_HEADER_BYTES = 16 * 1024
# Enough for a delivery of a monitor; routes that take less say so themselves.
MAX_BODY_BYTES = 16 * 1024**2

_DEADLINE = "overlane.deadline"


class SizeLimits:
    """Refuses requests whose address, headers or body are too large, before anything looks at them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = _too_large(scope)
        if refusal is not None:
            await answer_of(refusal, scope["path"][:MAX_URL_BYTES])(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MAX_BODY_BYTES:
                raise Problem(ProblemType.TOO_LARGE, f"the body is larger than {MAX_BODY_BYTES} bytes")
            return message

        await self._app(scope, counted, send)


def _too_large(scope: Scope) -> Problem | None:
    url_bytes = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
    if url_bytes > MAX_URL_BYTES:
        detail = f"the address is longer than {MAX_URL_BYTES} bytes, its query included"
        return Problem(ProblemType.ADDRESS_TOO_LONG, detail)
    header_bytes = sum(len(name) + len(value) for name, value in scope["headers"])
    if header_bytes > MAX_HEADER_BYTES:
        detail = f"the headers are larger than {MAX_HEADER_BYTES} bytes"
        return Problem(ProblemType.HEADERS_TOO_LARGE, detail)
    announced = Headers(scope=scope).get("content-length", "")
    if announced.isdecimal() and int(announced) > MAX_BODY_BYTES:
        return Problem(ProblemType.TOO_LARGE, f"the body is larger than {MAX_BODY_BYTES} bytes")
    return None


class TimeLimit:
    """Ends a request that takes longer than `limit_s`, also one whose body does not come. Event streams may go on."""

    def __init__(self, app: ASGIApp, limit_s: float) -> None:
        self._app = app
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream"):
                    deadline.reschedule(None)
            await send(message)

        try:
            async with asyncio.timeout(self._limit_s) as deadline:
                scope[_DEADLINE] = deadline
                await self._app(scope, receive, watched)
        except TimeoutError:
            if started:
                raise
            detail = "the service did not get it done in time; try again later"
            refusal = Problem(ProblemType.TIMED_OUT, detail, headers={"Retry-After": "5"})
            await answer_of(refusal, scope["path"])(scope, receive, send)


def allow(request: Request, limit_s: float) -> None:
    """Let this request take `limit_s` from now on, whatever the limit of the others is."""
    deadline = request.scope.get(_DEADLINE)
    if isinstance(deadline, asyncio.Timeout):
        deadline.reschedule(asyncio.get_running_loop().time() + limit_s)
