"""The route on which clients follow a job instead of asking again and again."""

from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from service.problems import ProblemDocument
from service.routers.access import Asking, event_stream
from service.services import Used

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"], responses={404: {"model": ProblemDocument}})

_STREAM = "text/event-stream"


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {_STREAM: {}}}},
)
async def events(
    job_id: str,
    request: Request,
    services: Used,
    caller: Asking,
    last_event_id: Annotated[int, Header(ge=0, le=2**53)] = 0,
) -> StreamingResponse:
    """Server-sent events: every change of state once and in order, and how training gets on, until the job has ended.

    - `state`: a `StateChange`. Its id is the one to resume at with `Last-Event-ID`; without, all changes so far come.
    - `step`: a `LatestStep`, the newest one at first and then whenever reports have come in, so not every step.
    - `end`: the state in which the job has ended, or `deleted`.

    A comment stands for "nothing new". A client that is too slow is cut off, and misses nothing when it resumes. A
    stream ends within seconds when its token is taken away.
    """
    await services.jobs.record(job_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return event_stream(request, services, services.feeds.follow(caller, job_id, last_event_id), headers)
