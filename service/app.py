"""The FastAPI application: routes over services, problems for errors, the dashboard at `/`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

import structlog
from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse

from service import answers
from service.browser import BrowserGuard
from service.cluster.gateway import RayGateway
from service.openapi.document import describe
from service.routers import audit, internal, jobs, observe, operations, plans, stream, webhooks
from service.routers.access import authorize
from service.services import Services
from service.settings import Settings
from service.store.database import Database
from service.tracing.requests import TracedRequests
from service.traffic import install as traffic

log = structlog.get_logger(__name__)

_NO_PAGE = """The control plane is up, but its page is not built.
Build it with: make setup
The API is described at /openapi.json, jobs are listed at /v1/jobs.
"""


def create_app(settings: Settings, gateway: RayGateway) -> FastAPI:
    """The control plane on top of a Ray cluster that is up. Its lifespan opens the database and runs the reconciler."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database = await Database.open(settings.database)
        app.state.services = services = Services.build(settings, database, gateway)
        tasks = [
            asyncio.create_task(services.loop.run(), name="reconciler"),
            asyncio.create_task(services.retention.run(), name="retention"),
            asyncio.create_task(services.streams.run(), name="open streams"),
            asyncio.create_task(services.webhooks.run(), name="webhooks"),
        ]
        log.info("service_up", home=str(settings.home), ray_address=gateway.address)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await services.feeds.close()
            await services.webhooks.close()
            await gateway.close()
            await database.close()

    app = FastAPI(
        title="Overlane",
        version=version("overlane"),
        description="Trains TorchRec models on Ray with the embedding AllToAlls hidden behind compute.",
        lifespan=lifespan,
        # A route of its own asks for a token, and the pages would load scripts from elsewhere.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # Its own would tell collectors addresses with their queries, and messages of errors.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    answers.install(app)
    traffic.install(app, settings)
    app.add_middleware(BrowserGuard, allowed_hosts=settings.own_hosts)
    app.add_middleware(TracedRequests)
    traffic.name_requests(app)
    for module in (jobs, observe, stream, plans, operations, audit, webhooks, internal):
        app.include_router(module.router, dependencies=[Depends(authorize)])
    describe(app, with_tokens=settings.tokens_file is not None)
    _serve_dashboard(app, settings)
    return app


def _serve_dashboard(app: FastAPI, settings: Settings) -> None:
    if (settings.dashboard / "index.html").is_file():
        app.frontend("/", directory=settings.dashboard, fallback=None)
        return

    @app.get("/", include_in_schema=False)
    async def no_page() -> PlainTextResponse:
        return PlainTextResponse(_NO_PAGE)
