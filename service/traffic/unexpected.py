"""Answers what nobody expected, inside of all other middleware, so that this answer too has its id and headers."""

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.answers import answer_of
from service.problems import Problem, ProblemType

log = structlog.get_logger(__name__)


class UnexpectedErrors:
    """Turns an exception that no handler knows into a problem document that tells nothing of the inside."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            log.error("request_failed", method=scope["method"], path=scope["path"], exc_info=error)
            if started:
                # Nothing else can tell the client that the rest is missing.
                raise
            detail = "An unexpected error; the service's log has the traceback"
            await answer_of(Problem(ProblemType.INTERNAL, detail), scope["path"])(scope, receive, send)
