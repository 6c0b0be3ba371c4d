"""Answers that have not changed since the client asked last are not sent again."""

import hashlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Headers that describe a body, which a 304 does not have.
_OF_THE_BODY = ("content-length", "content-type")


class ETags:
    """Tags every JSON answer to a GET below `/v1/` with a hash of it; `If-None-Match` with that tag is answered 304.

    The tags are weak: the same answer may travel compressed or not.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        known = Headers(scope=scope).getlist("if-none-match")
        held: Message | None = None

        async def tagged(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and _is_json(message):
                held = message
                return
            if held is not None:
                start, held = held, None
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    await _send_tagged(start, message, known, send)
                    return
                await send(start)
            await send(message)

        await self._app(scope, receive, tagged)


def _is_json(start: Message) -> bool:
    return start["status"] == 200 and Headers(raw=start["headers"]).get("content-type") == "application/json"


async def _send_tagged(start: Message, body: Message, known: list[str], send: Send) -> None:
    tag = f'W/"{hashlib.sha256(body["body"]).hexdigest()[:32]}"'
    headers = MutableHeaders(raw=start["headers"])
    headers["ETag"] = tag
    # A browser keeps the answer, and asks each time whether it still holds.
    headers.setdefault("Cache-Control", "private, no-cache")
    if not _matches(tag, known):
        await send(start)
        await send(body)
        return
    for name in _OF_THE_BODY:
        if name in headers:
            del headers[name]
    await send({**start, "status": 304})
    await send({"type": "http.response.body", "body": b""})


def _matches(tag: str, known: list[str]) -> bool:
    """Weak comparison: `W/` in front of a tag does not count."""
    wanted = [each.strip().removeprefix("W/") for line in known for each in line.split(",")]
    return "*" in wanted or tag.removeprefix("W/") in wanted
