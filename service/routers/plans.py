"""The route of plans."""

from fastapi import APIRouter, Request

from service.jobs.actions import invalid_job
from service.models import Plan
from service.plans import PLAN_TIMEOUT_S
from service.problems import ProblemDocument
from service.routers.access import Asking
from service.routers.body import JOB_FILE, read_job_file
from service.services import Used
from service.traffic.limits import allow
from workers.job import InvalidJob

router = APIRouter(prefix="/v1/plans", tags=["jobs"])


@router.post("", openapi_extra=JOB_FILE, responses={415: {"model": ProblemDocument}, 422: {"model": ProblemDocument}})
async def plan(request: Request, services: Used, caller: Asking) -> Plan:
    """Check a job without running it: whether its data open, its model builds, its tables fit, and what room there is.

    Each check says ok, no with what to do, or that it was not made, and why. It takes some ten seconds. A job file that
    is not valid is refused as it is when it is submitted.
    """
    try:
        spec = await read_job_file(request)
    except InvalidJob as error:
        raise invalid_job(error) from None
    allow(request, PLAN_TIMEOUT_S)
    return await services.plans.plan(caller, spec)
