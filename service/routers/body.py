"""Reading request bodies without letting them grow beyond a limit."""

from fastapi import Request

from service.problems import Problem, ProblemType


async def read_body(request: Request, limit: int) -> bytes:
    """The body, at most `limit` bytes of it. Raises `Problem`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Problem(ProblemType.TOO_LARGE, f"the body is larger than {limit} bytes")
    return bytes(body)
