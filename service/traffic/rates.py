"""How often a caller may ask: per token, or per address where there are no tokens.

Written here because the well-kept libraries count in a store beside the process, or, in memory, by the wall clock and
with a thread at work for each request; this takes one number per caller.
"""

import hashlib
import math
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.answers import answer_of
from service.problems import Problem, ProblemType

_FORGET_ABOVE = 10_000


class RateLimiter:
    """A bucket of `burst` requests for each caller, filled up again with `per_s` requests a second.

    What is kept of a caller is the moment at which its bucket is full again. `now` is in seconds.
    """

    def __init__(self, per_s: float, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self._each_s = 1 / per_s
        self._burst_s = burst / per_s
        self._now = now
        self._full_at: dict[str, float] = {}

    def wait_s(self, caller: str) -> float:
        """How long the caller has to wait before its next request; 0 if it may ask now."""
        now = self._now()
        return max(0.0, max(self._full_at.get(caller, now), now) + self._each_s - self._burst_s - now)

    def spend(self, caller: str) -> None:
        """Count a request of the caller."""
        now = self._now()
        if len(self._full_at) >= _FORGET_ABOVE:
            self._full_at = {each: at for each, at in self._full_at.items() if at > now}
        self._full_at[caller] = max(self._full_at.get(caller, now), now) + self._each_s


class RateLimits:
    """Refuses callers that ask more often than the rate; `per_s` 0 lets everybody ask as often as they like.

    Only what lies below `/v1/` counts: probes, metrics and the reports of jobs must come through. An address whose
    tokens are refused again and again is refused itself, or guessing would have no limit.
    """

    def __init__(self, app: ASGIApp, per_s: float, burst: int, by_token: bool) -> None:
        self._app = app
        self._limiter = RateLimiter(per_s, burst) if per_s else None
        self._by_token = by_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limiter = self._limiter
        if limiter is None or scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        address = f"address {scope['client'][0]}" if scope.get("client") else "address unknown"
        caller = (self._by_token and _token(scope)) or address
        wait_s = max(limiter.wait_s(caller), limiter.wait_s(address))
        if wait_s > 0:
            await answer_of(_refusal(wait_s), scope["path"])(scope, receive, send)
            return
        limiter.spend(caller)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401 and caller != address:
                limiter.spend(address)
            await send(message)

        await self._app(scope, receive, watched)


def _token(scope: Scope) -> str | None:
    """The token's hash, however much space is around the token."""
    token = Headers(scope=scope).get("authorization", "").partition(" ")[2].strip()
    return f"token {hashlib.sha256(token.encode()).hexdigest()}" if token else None


def _refusal(wait_s: float) -> Problem:
    seconds = math.ceil(wait_s)
    detail = f"too many requests; ask again in {seconds} s, or let OVERLANE_RATE_LIMIT allow more"
    return Problem(ProblemType.RATE_LIMITED, detail, headers={"Retry-After": str(seconds)})
