"""The route on which the monitor actors of running jobs deliver what the ranks report."""

from typing import Annotated

from fastapi import APIRouter, Header, Request

from service.routers.body import read_body
from service.services import Used

router = APIRouter(prefix="/internal/v1", include_in_schema=False)

MAX_REPORT_BYTES = 16 * 1024**2


@router.post("/jobs/{job_id}/reports", status_code=204)
async def reports(job_id: str, request: Request, services: Used, authorization: Annotated[str, Header()] = "") -> None:
    """Take in a `ReportBatch`; the same one twice changes nothing."""
    token = authorization.removeprefix("Bearer ")
    await services.telemetry.accept(job_id, token, await read_body(request, MAX_REPORT_BYTES))
