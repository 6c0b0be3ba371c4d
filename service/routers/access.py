"""The dependency of every route: may this caller do this? `Asking` hands the caller to a route that needs to know."""

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Annotated

from fastapi import Depends, Request
from starlette.routing import Route

from service.security.open_streams import GuardedStream
from service.security.roles import Caller
from service.services import Services, Used


async def authorize(request: Request, services: Used) -> Caller | None:
    """Raises `Problem` as `Access.admit` does."""
    route = request.scope["route"]
    assert isinstance(route, Route)
    job_id = request.path_params.get("job_id")
    return await services.access.admit(request.method, route.path, job_id, request.headers)


def event_stream(
    request: Request, services: Services, content: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
) -> GuardedStream:
    """An answer of server-sent events, which ends when the request would not be let in any more."""
    again = partial(authorize, request, services)
    return GuardedStream(content, services.streams, again, media_type="text/event-stream", headers=headers)


def _known(caller: Annotated[Caller | None, Depends(authorize)]) -> Caller:
    assert caller is not None
    return caller


Asking = Annotated[Caller, Depends(_known)]
