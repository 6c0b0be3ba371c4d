"""Routes of jobs: submit, list, show, stop, delete."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from service.jobs.actions import invalid_job
from service.models import Job, JobPage, JobState
from service.problems import Problem, ProblemDocument, ProblemType
from service.routers.access import Asking
from service.routers.body import read_body
from service.services import Used
from workers.job import MAX_JOB_BYTES, InvalidJob, JobSpec, read_job, read_json

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses={404: {"model": ProblemDocument}})

# Stored behind the name of a project, in 255 characters together.
MAX_KEY_LENGTH = 191

_JSON = "application/json"
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            _JSON: {"schema": JobSpec.model_json_schema(ref_template="#/components/schemas/{model}")},
            _YAML[0]: {"schema": {"type": "string"}},
        },
    }
}


@router.post("", status_code=202, openapi_extra=_BODY, responses={422: {"model": ProblemDocument}})
async def submit(
    request: Request,
    response: Response,
    services: Used,
    caller: Asking,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=MAX_KEY_LENGTH)] = None,
) -> Job:
    """Submit a job file, as JSON or YAML. A repeated `Idempotency-Key` gives the first answer again."""
    try:
        spec = _read(request.headers.get("content-type", ""), await read_body(request, MAX_JOB_BYTES))
    except InvalidJob as error:
        raise invalid_job(error) from None
    job = await services.jobs.submit(caller, spec, idempotency_key)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job


@router.get("")
async def list_jobs(
    services: Used,
    caller: Asking,
    state: JobState | None = None,
    project: str | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> JobPage:
    """Jobs that the token may see, newest first."""
    return await services.jobs.page(caller, state, project, cursor, limit)


@router.get("/{job_id}")
async def show(job_id: str, services: Used) -> Job:
    """One job."""
    return await services.jobs.get(job_id)


@router.post("/{job_id}/stop", status_code=202)
async def stop(job_id: str, services: Used, caller: Asking) -> Job:
    """Ask a job to stop; asking again, or asking an ended job, changes nothing."""
    return await services.jobs.stop(caller, job_id)


@router.delete("/{job_id}", status_code=204, responses={409: {"model": ProblemDocument}})
async def delete(job_id: str, services: Used, caller: Asking) -> None:
    """Delete an ended job with its steps and its log."""
    await services.jobs.delete(caller, job_id)


def _read(content_type: str, body: bytes) -> JobSpec:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in (_JSON, *_YAML):
        detail = f"Content-Type {content_type!r}: send the job file as {_JSON} or {_YAML[0]}"
        raise Problem(ProblemType.UNSUPPORTED_MEDIA_TYPE, detail)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidJob([f"job file: not UTF-8: {error}"]) from None
    return read_json(text) if media_type == _JSON else read_job(text)
