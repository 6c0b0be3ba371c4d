"""The parts of the control plane, put together; routes find them on the application."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request

from service.archive import StepArchive
from service.cluster.gateway import RayGateway
from service.jobs.actions import JobService
from service.jobs.logs import LogReader
from service.jobs.loop import ReconcilerLoop
from service.jobs.quotas import read_quotas
from service.jobs.reconciler import Reconciler
from service.jobs.tokens import ReportTokens, load_key
from service.operations import Operations
from service.plans import PlanService
from service.retention import Retention
from service.security.access import Access
from service.security.open_streams import OpenStreams
from service.security.tokens_file import TokensFile
from service.settings import Settings
from service.store.audit import AuditStore
from service.store.database import Database
from service.store.events import EventStore
from service.store.jobs import JobStore
from service.store.steps import StepStore
from service.store.webhooks import Outbox, WebhookStore
from service.telemetry.feeds import Feeds
from service.telemetry.reports import Telemetry
from service.telemetry.trace import Tracer
from service.tracing.gateway import TracedGateway
from service.webhooks.dispatcher import Dispatcher
from service.webhooks.endpoints import read_endpoints


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Services:
    """Everything a route can need."""

    database: Database
    gateway: RayGateway
    access: Access
    streams: OpenStreams
    audit: AuditStore
    jobs: JobService
    plans: PlanService
    telemetry: Telemetry
    feeds: Feeds
    tracer: Tracer
    logs: LogReader
    operations: Operations
    reconciler: Reconciler
    loop: ReconcilerLoop
    archive: StepArchive
    retention: Retention
    webhooks: Dispatcher

    @classmethod
    def build(
        cls, settings: Settings, database: Database, gateway: RayGateway, now: Callable[[], datetime] = utc_now
    ) -> "Services":
        """Wire the parts; nothing runs yet."""
        gateway = TracedGateway(gateway)
        endpoints = read_endpoints(settings.webhooks_file)
        job_store, step_store = JobStore(database, Outbox(endpoints)), StepStore(database)
        logs, archive = LogReader(settings.logs, gateway), StepArchive(settings.archive)
        quotas = read_quotas(settings.quotas_file)
        tokens = ReportTokens(load_key(settings.home / "report.key"))
        reconciler = Reconciler(settings, job_store, gateway, logs, now, quotas, tokens)
        loop = ReconcilerLoop(reconciler)
        telemetry = Telemetry(job_store, step_store, loop.poke)
        access = Access(TokensFile(settings.tokens_file) if settings.tokens_file else None, job_store)
        return cls(
            database=database,
            gateway=gateway,
            access=access,
            streams=OpenStreams(access),
            audit=AuditStore(database),
            jobs=JobService(job_store, telemetry, gateway, logs, now, loop.poke, quotas, settings.jobs_run_here),
            plans=PlanService(settings.dry_run_command, job_store, gateway, quotas, now),
            telemetry=telemetry,
            feeds=Feeds(job_store, EventStore(database), telemetry),
            tracer=Tracer(step_store, telemetry),
            logs=logs,
            operations=Operations(database, job_store, step_store, gateway),
            reconciler=reconciler,
            loop=loop,
            archive=archive,
            retention=Retention(settings, database, archive, logs, now),
            webhooks=Dispatcher(endpoints, WebhookStore(database), now),
        )


def services_of(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


Used = Annotated[Services, Depends(services_of)]
