"""Routes that look into one job: its log, its steps, its overlap."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from fastapi.sse import format_sse_event

from service.cluster.gateway import RayUnavailableError
from service.models import NEXT_OFFSET_HEADER, JobState, Overlap, StepPage
from service.problems import Problem, ProblemDocument, ProblemType
from service.routers.access import event_stream
from service.services import Services, Used
from service.store.engine import DatabaseUnavailableError
from service.telemetry.chrome import Trace
from service.telemetry.reports import check_steps_are_here
from service.telemetry.trace import STEPS_PATTERN, StepRange, trace_of

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"], responses={404: {"model": ProblemDocument}})


@router.get("/steps")
async def steps(
    job_id: str,
    services: Used,
    after: Annotated[int, Query(ge=-1, le=2**53)] = -1,
    rank: Annotated[int | None, Query(ge=0, le=2**31)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> StepPage:
    """Step samples above step `after`, in the order (step, rank). A page never ends in the middle of a step."""
    record = await services.jobs.record(job_id)
    check_steps_are_here(record)
    return await services.telemetry.page(record, after, rank, limit)


@router.get("/overlap")
async def overlap(job_id: str, services: Used) -> Overlap:
    """How much of the communication is hidden, per collective and per rank."""
    check_steps_are_here(await services.jobs.record(job_id))
    return await services.telemetry.overlap(job_id)


@router.get("/trace", response_model=Trace, responses={422: {"model": ProblemDocument}})
async def trace(
    job_id: str, services: Used, steps: Annotated[str | None, Query(pattern=STEPS_PATTERN)] = None
) -> Response:
    """Steps in the Chrome trace event format, which ui.perfetto.dev opens: a process for each rank, on one clock.

    `steps` is one step (`120`) or a range (`120-160`); by default the newest 50 that every rank has reported. The
    lengths of compute and collectives within a step are measured, their places are not: see `otherData`.
    """
    record = await services.jobs.record(job_id)
    check_steps_are_here(record)
    samples = await services.tracer.samples(record, None if steps is None else StepRange.parse(steps))
    body = await asyncio.to_thread(lambda: trace_of(job_id, samples).model_dump_json().encode())
    headers = {"Content-Disposition": f'attachment; filename="{job_id}.trace.json"'}
    return Response(body, media_type="application/json", headers=headers)


@router.get(
    "/logs",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}, "text/event-stream": {}}}},
)
async def logs(
    job_id: str,
    request: Request,
    services: Used,
    offset: Annotated[int, Query(ge=0)] = 0,
    follow: bool = False,
    last_event_id: Annotated[int | None, Header(ge=0)] = None,
) -> Response:
    """The log from byte `offset` on; the header `Overlane-Next-Offset` says where to go on.

    With `follow=1` server-sent events: whole lines, whose id is the offset after them, and `end` with the job's state.
    """
    await services.jobs.record(job_id)
    if follow:
        start = offset if last_event_id is None else last_event_id
        return event_stream(request, services, _events(services, job_id, start))
    try:
        part = await services.logs.read(job_id, offset)
    except RayUnavailableError as error:
        raise Problem(ProblemType.RAY_UNAVAILABLE, str(error), headers={"Retry-After": "5"}) from None
    headers = {NEXT_OFFSET_HEADER: str(part.next_offset)}
    return Response(part.content, media_type="text/plain; charset=utf-8", headers=headers)


async def _events(services: Services, job_id: str, offset: int) -> AsyncGenerator[bytes, None]:
    """A client that is cut off comes back with the last id, so trouble with Ray or database may end the stream."""

    async def state() -> JobState | None:
        try:
            return (await services.jobs.record(job_id)).state
        except Problem:
            return None

    try:
        async for part in services.logs.follow(job_id, offset, state):
            if part.content:
                text = part.content.decode(errors="replace")
                yield format_sse_event(data_str=text, id=str(part.next_offset))
            else:
                yield format_sse_event(comment="nothing new")
        ended = await state()
    except RayUnavailableError as error:
        yield format_sse_event(comment=str(error))
        return
    except DatabaseUnavailableError:
        yield format_sse_event(comment="the database does not answer")
        return
    yield format_sse_event(event="end", data_str=ended.value if ended else "deleted")
