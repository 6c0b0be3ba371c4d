"""Routes for operators: probes, metrics, the cluster."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from service.models import Cluster, Health
from service.problems import ProblemDocument
from service.services import Used

router = APIRouter(tags=["operations"])


@router.get("/livez")
async def livez() -> Health:
    """The process answers."""
    return Health()


@router.get("/readyz", responses={503: {"model": ProblemDocument}})
async def readyz(services: Used) -> Health:
    """The database and Ray answer too, and the tokens file can be used."""
    services.access.check()
    await services.operations.check_ready()
    return Health()


@router.get("/metrics", response_class=Response)
async def metrics(services: Used) -> Response:
    """Figures for Prometheus."""
    return Response(await services.operations.metrics(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/cluster", responses={503: {"model": ProblemDocument}})
async def cluster(services: Used) -> Cluster:
    """The Ray cluster, and how many jobs are in each state."""
    return await services.operations.cluster()


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> dict[str, Any]:
    """What this API offers."""
    document: dict[str, Any] = request.app.openapi()
    return document
