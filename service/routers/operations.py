"""Routes for operators: probes, metrics, the cluster."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from service.models import Cluster, Health, WatchedRuns
from service.problems import ProblemDocument
from service.security.roles import Role
from service.services import Used
from service.webhooks.metrics import exposition

router = APIRouter(tags=["operations"])


@router.get("/livez")
async def livez() -> Health:
    """The process answers."""
    return Health()


@router.get("/readyz", responses={503: {"model": ProblemDocument}})
async def readyz(request: Request, services: Used) -> Health:
    """The database and Ray answer too, and the tokens file can be used. An admin is told why not."""
    caller = services.access.caller(request.headers)
    await services.operations.check_ready(caller is not None and caller.role is Role.ADMIN)
    return Health()


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(services: Used) -> Response:
    """Figures for Prometheus."""
    text = await services.operations.metrics() + exposition((await services.webhooks.overview()).items)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/cluster", responses={503: {"model": ProblemDocument}})
async def cluster(services: Used) -> Cluster:
    """The Ray cluster, and how many jobs are in each state."""
    return await services.operations.cluster()


@router.get("/v1/runs", responses={503: {"model": ProblemDocument}})
async def runs(services: Used, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> WatchedRuns:
    """Runs of the Ray cluster that somebody started without this service, newest first; it only watches them."""
    return await services.operations.runs(limit)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> dict[str, Any]:
    """What this API offers."""
    document: dict[str, Any] = request.app.openapi()
    return document
