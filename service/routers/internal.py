"""The route on which the monitor actors of running jobs deliver what the ranks report."""

from fastapi import APIRouter, Request

from service.routers.body import read_body
from service.security.access import bearer_token
from service.services import Used

router = APIRouter(prefix="/internal/v1", include_in_schema=False)

MAX_REPORT_BYTES = 16 * 1024**2


@router.post("/jobs/{job_id}/reports", status_code=204)
async def reports(job_id: str, request: Request, services: Used) -> None:
    """Take in a `ReportBatch`; the same one twice changes nothing."""
    token = bearer_token(request.headers)
    # Nothing is read of a body before it is known to come from the job, which may have ended once it is read.
    await services.telemetry.reporter(job_id, token)
    await services.telemetry.accept(job_id, token, await read_body(request, MAX_REPORT_BYTES))
