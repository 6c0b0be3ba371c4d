"""The route of plans."""

from fastapi import APIRouter, Request

from service.models import Plan
from service.plans import PLAN_TIMEOUT_S, invalid_plan
from service.routers.access import Asking
from service.routers.body import JOB_FILE, read_job_file
from service.services import Used
from service.traffic.limits import allow
from workers.job import InvalidJob

router = APIRouter(prefix="/v1/plans", tags=["jobs"])


@router.post("", openapi_extra=JOB_FILE)
async def plan(request: Request, services: Used, caller: Asking) -> Plan:
    """Check a job without running it: its file, whether its data open, its model builds, its tables fit, and the room.

    Each check says ok, no with what to do, or that it was not made, and why. It takes some ten seconds.
    """
    try:
        spec = await read_job_file(request)
    except InvalidJob as error:
        return invalid_plan(error)
    allow(request, PLAN_TIMEOUT_S)
    return await services.plans.plan(caller, spec)
