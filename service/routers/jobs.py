"""Routes of jobs: submit, list, show, stop, delete."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from service.cursors import Cursor
from service.jobs.actions import invalid_job
from service.models import Job, JobPage, JobState
from service.problems import ProblemDocument
from service.routers.access import Asking
from service.routers.body import JOB_FILE, read_job_file
from service.services import Used
from workers.job import InvalidJob

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses={404: {"model": ProblemDocument}})

# Stored behind the name of a project, in 255 characters together.
MAX_KEY_LENGTH = 191


@router.post("", status_code=202, openapi_extra=JOB_FILE, responses={415: {"model": ProblemDocument}})
async def submit(
    request: Request,
    response: Response,
    services: Used,
    caller: Asking,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=MAX_KEY_LENGTH)] = None,
) -> Job:
    """Submit a job file, as JSON or YAML. A repeated `Idempotency-Key` gives the first answer again."""
    try:
        spec = await read_job_file(request)
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
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> JobPage:
    """Jobs that the token may see, newest first."""
    return await services.jobs.page(caller, state, project, cursor, limit)


@router.get("/{job_id}")
async def show(job_id: str, services: Used, caller: Asking) -> Job:
    """One job."""
    return await services.jobs.get(caller, job_id)


@router.post("/{job_id}/stop", status_code=202)
async def stop(job_id: str, services: Used, caller: Asking) -> Job:
    """Ask a job to stop; asking again, or asking an ended job, changes nothing."""
    return await services.jobs.stop(caller, job_id)


@router.delete("/{job_id}", status_code=204, responses={409: {"model": ProblemDocument}})
async def delete(job_id: str, services: Used, caller: Asking) -> None:
    """Delete an ended job with its steps and its log."""
    await services.jobs.delete(caller, job_id)
    services.archive.forget(job_id)
