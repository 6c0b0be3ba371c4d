"""A typed client of the REST API, for the command line and for programs."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from service.addresses import is_loopback
from service.following import JobEnded, JobEvent, NotEventsError, together
from service.models import (
    NEXT_OFFSET_HEADER,
    Cluster,
    Job,
    JobPage,
    JobState,
    Overlap,
    Plan,
    StateChange,
    StepPage,
    WatchedRuns,
)
from service.problems import ProblemDocument, ProblemType
from service.telemetry.chrome import Trace
from service.webhooks.shapes import Webhooks, WebhookTest

_TIMEOUT_S = 30.0
# The service itself gives up before that.
_PLAN_TIMEOUT_S = 200.0
_FOLLOW_PAUSE_S = 0.5
# A service that is started again is back within this many pauses; heartbeats come several times within the silence.
_FOLLOW_TRIES = 60
_SILENCE_S = 60.0

_Shape = TypeVar("_Shape", bound=BaseModel)


class ServiceError(Exception):
    """The service says no; `problem` is its answer."""

    def __init__(self, problem: ProblemDocument) -> None:
        super().__init__(f"{problem.title}: {problem.detail}")
        self.problem = problem


class ServiceUnreachableError(Exception):
    """Nothing answers at the address, or something else than the service does."""


class Client:
    """Speaks to the control plane at `url`. Every method raises `ServiceError` and `ServiceUnreachableError`."""

    def __init__(self, url: str, token: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url.rstrip("/")
        try:
            # A proxy of the environment leads away from this machine, so it cannot lead to loopback.
            proxied = not is_loopback(urlsplit(self.url).hostname or "")
            self._http = httpx.Client(
                base_url=self.url, headers=headers, timeout=_TIMEOUT_S, transport=transport, trust_env=proxied
            )
        except (ValueError, httpx.InvalidURL) as error:
            raise ServiceUnreachableError(f"{self.url!r} is no address of a service: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def submit(self, job_file: Path, idempotency_key: str | None = None) -> Job:
        """Submit a job file as it is written. Raises `OSError` if it cannot be read."""
        headers = {"Content-Type": _media_type(job_file)}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        return self._ask(Job, "POST", "/v1/jobs", content=job_file.read_bytes(), headers=headers)

    def plan(self, job_file: Path) -> Plan:
        """What would become of a job; it may take minutes. Raises `OSError` if the file cannot be read."""
        content, headers = job_file.read_bytes(), {"Content-Type": _media_type(job_file)}
        return self._ask(Plan, "POST", "/v1/plans", content=content, headers=headers, timeout=_PLAN_TIMEOUT_S)

    def jobs(self, state: JobState | None = None, project: str | None = None, limit: int = 50) -> JobPage:
        query = {"state": state.value if state else None, "project": project, "limit": limit}
        return self._ask(JobPage, "GET", "/v1/jobs", params=_given(query))

    def job(self, job_id: str) -> Job:
        return self._ask(Job, "GET", _path(job_id))

    def stop(self, job_id: str) -> Job:
        return self._ask(Job, "POST", _path(job_id, "stop"))

    def delete(self, job_id: str) -> None:
        self._send("DELETE", _path(job_id))

    def overlap(self, job_id: str) -> Overlap:
        return self._ask(Overlap, "GET", _path(job_id, "overlap"))

    def steps(self, job_id: str, after: int = -1, rank: int | None = None, limit: int = 1000) -> StepPage:
        query = {"after": after, "rank": rank, "limit": limit}
        return self._ask(StepPage, "GET", _path(job_id, "steps"), params=_given(query))

    def trace(self, job_id: str, steps: str | None = None) -> Trace:
        """Steps for ui.perfetto.dev: one (`120`), a range (`120-160`), or the newest ones."""
        return self._ask(Trace, "GET", _path(job_id, "trace"), params=_given({"steps": steps}))

    def follow_events(self, job_id: str) -> Iterator[list[JobEvent]]:
        """What happens to a job, events that came together in one list, until it has ended or is deleted.

        Every change of state comes once, also when the connection breaks and the service is started again meanwhile.
        """
        after, failures = 0, 0
        while True:
            try:
                for events in self._events(job_id, after):
                    after = max([after, *(event.number for event in events if isinstance(event, StateChange))])
                    failures = 0
                    if events:
                        yield events
                    if any(isinstance(event, JobEnded) for event in events):
                        return
            except (ServiceUnreachableError, ServiceError) as error:
                failures += 1
                gone = isinstance(error, ServiceError) and not _passes(error.problem)
                if gone or after == 0 or failures > _FOLLOW_TRIES:
                    raise
            time.sleep(_FOLLOW_PAUSE_S)

    def _events(self, job_id: str, after: int) -> Iterator[list[JobEvent]]:
        """One connection of `follow_events`."""
        timeout = httpx.Timeout(_TIMEOUT_S, read=_SILENCE_S)
        headers = {"Last-Event-ID": str(after)}
        try:
            with self._http.stream("GET", _path(job_id, "events"), headers=headers, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                yield from together(self._checked(response).iter_text())
        except httpx.HTTPError as error:
            raise ServiceUnreachableError(f"no service at {self.url}: {error}") from error
        except NotEventsError as error:
            raise ServiceUnreachableError(f"{self.url} does not answer as this version of Overlane: {error}") from error

    def cluster(self) -> Cluster:
        return self._ask(Cluster, "GET", "/v1/cluster")

    def runs(self, limit: int = 50) -> WatchedRuns:
        """What others have submitted to the cluster, newest first."""
        return self._ask(WatchedRuns, "GET", "/v1/runs", params={"limit": limit})

    def webhooks(self) -> Webhooks:
        """Who is told of changes of state, and how that gets on."""
        return self._ask(Webhooks, "GET", "/v1/webhooks")

    def test_webhook(self, name: str) -> WebhookTest:
        """Send a test message to an endpoint."""
        return self._ask(WebhookTest, "POST", f"/v1/webhooks/{quote(name, safe='')}/ping")

    def ready(self) -> None:
        """Return if the service, its database and Ray answer."""
        self._send("GET", "/readyz")

    def logs(self, job_id: str, offset: int = 0) -> tuple[str, int]:
        """The log from byte `offset` on, and the offset of what comes after."""
        response = self._send("GET", _path(job_id, "logs"), params={"offset": offset})
        return response.text, int(response.headers[NEXT_OFFSET_HEADER])

    def follow_logs(self, job_id: str) -> Iterator[str]:
        """The log as it grows, until the job has ended."""
        offset = 0
        while True:
            ended = self.job(job_id).state.ended
            text, offset = self.logs(job_id, offset)
            if text:
                yield text
            if ended:
                return
            time.sleep(_FOLLOW_PAUSE_S)

    def _ask(self, shape: type[_Shape], method: str, path: str, **options: Any) -> _Shape:
        response = self._send(method, path, **options)
        try:
            return shape.model_validate_json(response.content)
        except ValidationError as error:
            raise ServiceUnreachableError(f"{self.url} does not answer as this version of Overlane: {error}") from error

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise ServiceUnreachableError(f"no service at {self.url}: {error}") from error
        return self._checked(response)

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        try:
            problem = ProblemDocument.model_validate_json(response.content)
        except ValidationError as error:
            raise ServiceUnreachableError(
                f"{self.url} answered HTTP {response.status_code}, not as Overlane"
            ) from error
        raise ServiceError(problem)


def _passes(problem: ProblemDocument) -> bool:
    """Whether asking later helps. After a restart all followers come back at once, and some of them may be limited."""
    return problem.status >= 500 or problem.type == ProblemType.RATE_LIMITED.urn


def _path(job_id: str, room: str = "") -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}" + (f"/{room}" if room else "")


def _media_type(job_file: Path) -> str:
    return "application/json" if job_file.suffix == ".json" else "application/yaml"


def _given(query: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}
