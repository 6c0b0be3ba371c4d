"""The dependency of every route: may this caller do this? `Asking` hands the caller to a route that needs to know."""

from collections.abc import AsyncGenerator, Mapping
from typing import Annotated

from fastapi import Depends, Request
from starlette.routing import Route

from service.problems import Problem, ProblemType
from service.security.open_streams import GuardedStream
from service.security.roles import Caller
from service.services import Services, Used


async def authorize(request: Request, services: Used) -> Caller | None:
    """Raises `Problem` as `Access.admit` does."""
    route = request.scope["route"]
    assert isinstance(route, Route)
    job_id = request.path_params.get("job_id")
    caller = await services.access.admit(request.method, route.path, job_id, request.headers)
    request.state.caller = caller
    return caller


def event_stream(
    request: Request, services: Services, content: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
) -> GuardedStream:
    """An answer of server-sent events, which ends when the request would not be let in any more."""
    admitted = request.state.caller

    async def again() -> None:
        caller = await authorize(request, services)
        # What is sent depends on which projects the caller sees.
        if caller is not None and caller.project != admitted.project:
            raise Problem(ProblemType.UNAUTHORIZED, "the token is of another project now")

    return GuardedStream(content, services.streams, again, media_type="text/event-stream", headers=headers)


def _known(caller: Annotated[Caller | None, Depends(authorize)]) -> Caller:
    assert caller is not None
    return caller


Asking = Annotated[Caller, Depends(_known)]
