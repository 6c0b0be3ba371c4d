"""A span for each call to Ray that is made for somebody."""

from contextlib import AbstractContextManager

from service.cluster.gateway import RayGateway, RayJob, RayResources, RayRun, RaySubmission
from service.tracing import spans


class TracedGateway:
    """The `RayGateway` that it is given, with a span around each call."""

    def __init__(self, gateway: RayGateway) -> None:
        self._gateway = gateway

    @property
    def address(self) -> str:
        return self._gateway.address

    async def submit(self, submission: RaySubmission) -> None:
        with _span("submit"):
            await self._gateway.submit(submission)

    async def job(self, job_id: str) -> RayJob | None:
        with _span("job"):
            return await self._gateway.job(job_id)

    async def runs(self) -> list[RayRun]:
        with _span("runs"):
            return await self._gateway.runs()

    async def stop(self, job_id: str) -> None:
        with _span("stop"):
            await self._gateway.stop(job_id)

    async def forget(self, job_id: str) -> None:
        with _span("forget"):
            await self._gateway.forget(job_id)

    async def logs(self, job_id: str) -> str | None:
        with _span("logs"):
            return await self._gateway.logs(job_id)

    async def resources(self) -> RayResources:
        with _span("resources"):
            return await self._gateway.resources()

    async def close(self) -> None:
        await self._gateway.close()


def _span(call: str) -> AbstractContextManager[spans.Span]:
    return spans.within(f"ray {call}", spans.Kind.CLIENT)
