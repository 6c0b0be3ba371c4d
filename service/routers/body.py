"""Reading request bodies without letting them grow beyond a limit."""

from fastapi import Request
from starlette.requests import ClientDisconnect

from service.problems import Problem, ProblemType


async def read_body(request: Request, limit: int) -> bytes:
    """The body, at most `limit` bytes of it. Raises `Problem`."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise Problem(ProblemType.TOO_LARGE, f"the body is larger than {limit} bytes")
    except ClientDisconnect:
        # Nobody reads this answer, but it is no failure of the service either.
        raise Problem(ProblemType.INVALID_REQUEST, "the client went away before it had sent the body") from None
    return bytes(body)
