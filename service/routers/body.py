"""Reading request bodies without letting them grow beyond a limit."""

from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from service.problems import Problem, ProblemType
from workers.job import MAX_JOB_BYTES, InvalidJob, JobSpec, read_job, read_json

_JSON = "application/json"
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")
JOB_FILE_MEDIA_TYPES = (_JSON, _YAML[0])
JOB_FILE: dict[str, Any] = {
    "requestBody": {"required": True, "content": {media_type: {} for media_type in JOB_FILE_MEDIA_TYPES}}
}
"""For OpenAPI: the body is a job file. What that is stands in `service.openapi`."""


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


async def read_job_file(request: Request) -> JobSpec:
    """The job file in the body, JSON or YAML as its `Content-Type` says. Raises `Problem` and `InvalidJob`."""
    content_type = request.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in (_JSON, *_YAML):
        detail = f"Content-Type {content_type!r}: send the job file as {_JSON} or {_YAML[0]}"
        raise Problem(ProblemType.UNSUPPORTED_MEDIA_TYPE, detail)
    body = await read_body(request, MAX_JOB_BYTES)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidJob([f"job file: not UTF-8: {error}"]) from None
    return read_json(text) if media_type == _JSON else read_job(text)
