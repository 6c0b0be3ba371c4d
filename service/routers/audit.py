"""The route that shows what requests have changed."""

from typing import Annotated

from fastapi import APIRouter, Query

from service.cursors import Cursor, cursor_of, number_of
from service.security.audit import AuditPage
from service.services import Used

router = APIRouter(prefix="/v1/audit", tags=["operations"])


@router.get("")
async def audit(
    services: Used,
    job_id: str | None = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> AuditPage:
    """Who submitted, stopped and deleted what, newest first; `job_id` narrows it to one job, also a deleted one."""
    entries, following = await services.audit.page(job_id, number_of(cursor), limit)
    return AuditPage(items=entries, next_cursor=cursor_of(following))
