"""What holds for every request: ids, sizes, time, rates; and for every answer: tags and compression."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from asgi_correlation_id import correlation_id
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Message, Scope
from structlog.typing import EventDict

from service import log
from service.answers import answer_of
from service.problems import MEDIA_TYPE, Problem, ProblemType
from service.settings import Settings
from service.traffic import install as traffic
from service.traffic.limits import MAX_BODY_BYTES, MAX_HEADER_BYTES, MAX_URL_BYTES, allow
from service.traffic.rates import RateLimiter, RateLimits
from service.traffic.request_ids import with_request_id
from tests.unit.service.conftest import JOB, Plane

pytestmark = pytest.mark.anyio

REQUEST_ID = "X-Request-ID"


def is_problem(answer: httpx.Response, kind: ProblemType) -> None:
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert (answer.status_code, answer.json()["type"]) == (kind.status, kind.urn)


def guarded(tmp_path: Path, **settings: Any) -> FastAPI:
    """An application with nothing in it but what every request goes through."""
    app = FastAPI()
    traffic.install(app, Settings(home=tmp_path, **settings))
    traffic.name_requests(app)
    return app


def reach(app: FastAPI, address: str = "10.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://service")


# Request ids


async def test_every_answer_has_an_id_of_its_own(plane: Plane) -> None:
    paths = ["/livez", "/v1/jobs", "/v1/nothing", "/v1/jobs/job-nope"]
    ids = {(await plane.http.get(path)).headers[REQUEST_ID] for path in paths}
    refused = await plane.http.get("/livez", headers={"Host": "evil.example"})
    assert len({*ids, refused.headers[REQUEST_ID]}) == 5


async def test_the_answer_to_an_unexpected_error_has_an_id_and_the_headers(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(plane.services.jobs, "get", broken)
    answer = await plane.http.get("/v1/jobs/job-1", headers={REQUEST_ID: "request-0001"})
    is_problem(answer, ProblemType.INTERNAL)
    assert answer.headers[REQUEST_ID] == "request-0001"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("given", ["short", "a" * 129, "with space", 'quo"te-0001', "line\tbreak", "-leading-dash"])
async def test_an_id_that_is_not_well_formed_is_replaced(plane: Plane, given: str) -> None:
    answered = (await plane.http.get("/livez", headers={REQUEST_ID: given})).headers[REQUEST_ID]
    assert answered != given
    assert len(answered) == 32


async def test_log_lines_of_a_request_carry_its_id(plane: Plane) -> None:
    seen: list[EventDict] = []

    def keep(_logger: Any, _method: str, event: EventDict) -> EventDict:
        seen.append(dict(event))
        raise structlog.DropEvent

    # What `capture_logs` has set up would drop the events before they get here.
    before = structlog.get_config()["processors"]
    structlog.get_config()["processors"][:] = [with_request_id, keep]
    try:
        await plane.http.post("/v1/jobs", json=JOB, headers={REQUEST_ID: "request-0001"})
    finally:
        structlog.get_config()["processors"][:] = before
    assert [(event["event"], event["request_id"]) for event in seen] == [("job_queued", "request-0001")]


def test_the_log_shows_it() -> None:
    before, stream = structlog.get_config(), io.StringIO()
    token = correlation_id.set("request-0001")
    try:
        log.configure(stream)
        structlog.get_logger().info("something")
    finally:
        correlation_id.reset(token)
        structlog.configure(**before)
    assert json.loads(stream.getvalue())["request_id"] == "request-0001"


def test_outside_of_a_request_there_is_no_id() -> None:
    assert with_request_id(None, "info", {"event": "x"}) == {"event": "x"}


# Sizes


async def test_an_address_that_is_too_long(plane: Plane) -> None:
    answer = await plane.http.get("/v1/jobs?project=" + "x" * MAX_URL_BYTES)
    is_problem(answer, ProblemType.ADDRESS_TOO_LONG)
    answer = await plane.http.get("/" + "x" * MAX_URL_BYTES)
    is_problem(answer, ProblemType.ADDRESS_TOO_LONG)
    assert len(answer.content) < MAX_URL_BYTES + 1000


async def test_headers_that_are_too_large(plane: Plane) -> None:
    answer = await plane.http.get("/v1/jobs", headers={"X-Long": "x" * MAX_HEADER_BYTES})
    is_problem(answer, ProblemType.HEADERS_TOO_LARGE)


async def test_a_body_that_is_too_large_is_refused_by_what_it_announces(plane: Plane) -> None:
    answer = await plane.http.post("/v1/nothing", headers={"Content-Length": str(MAX_BODY_BYTES + 1)})
    is_problem(answer, ProblemType.TOO_LARGE)


async def test_a_body_that_announces_nothing_is_counted(tmp_path: Path) -> None:
    app = guarded(tmp_path)
    read = 0

    @app.post("/read")
    async def swallow(request: Request) -> None:
        nonlocal read
        async for chunk in request.stream():
            read += len(chunk)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 1024**2

    app.add_exception_handler(Problem, lambda request, error: answer_of(error, request.url.path))  # type: ignore[arg-type]
    async with reach(app) as http:
        is_problem(await http.post("/read", content=chunks()), ProblemType.TOO_LARGE)
    assert read == MAX_BODY_BYTES


# Time


async def test_a_request_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    app = guarded(tmp_path, request_timeout_s=0.05)
    ended = asyncio.Event()

    @app.get("/never")
    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with reach(app) as http:
        answer = await http.get("/never")
    is_problem(answer, ProblemType.TIMED_OUT)
    assert answer.headers["Retry-After"] == "5"
    assert ended.is_set()


async def test_a_route_may_take_longer_when_it_says_so(tmp_path: Path) -> None:
    app = guarded(tmp_path, request_timeout_s=0.01)

    @app.get("/slow")
    async def slow(request: Request) -> str:
        allow(request, 60)
        await asyncio.sleep(0.05)
        return "done"

    async with reach(app) as http:
        assert (await http.get("/slow")).json() == "done"


async def test_an_event_stream_has_no_limit(tmp_path: Path) -> None:
    app = guarded(tmp_path, request_timeout_s=0.02)

    async def events() -> AsyncIterator[str]:
        for number in range(5):
            await asyncio.sleep(0.02)
            yield f"data: {number}\n\n"

    @app.get("/events")
    async def stream() -> StreamingResponse:
        return StreamingResponse(events(), media_type="text/event-stream")

    async with reach(app) as http:
        answer = await http.get("/events", headers={"Accept-Encoding": "gzip"})
    assert answer.text.count("data:") == 5
    assert "content-encoding" not in answer.headers


async def test_another_stream_is_cut_off(tmp_path: Path) -> None:
    """Its answer has begun, so all that can be done is not to end it as if it were whole."""
    app = guarded(tmp_path, request_timeout_s=0.02)

    async def endless() -> AsyncIterator[str]:
        while True:
            await asyncio.sleep(0.005)
            yield "x"

    @app.get("/endless")
    async def stream() -> StreamingResponse:
        return StreamingResponse(endless(), media_type="text/plain")

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as http:
        with pytest.raises(TimeoutError):
            await http.get("/endless")


# Rates


class Time:
    """Seconds that pass when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_is_emptied_at_once_and_filled_at_its_rate() -> None:
    time = Time()
    limiter = RateLimiter(per_s=2, burst=3, now=time)
    for _ in range(3):
        assert limiter.wait_s("a") == 0
        limiter.spend("a")
    assert limiter.wait_s("a") == pytest.approx(0.5)
    assert limiter.wait_s("b") == 0
    time.now += 0.5
    assert limiter.wait_s("a") == pytest.approx(0)
    limiter.spend("a")
    assert limiter.wait_s("a") == pytest.approx(0.5)
    time.now += 100
    for _ in range(3):
        assert limiter.wait_s("a") == 0
        limiter.spend("a")
    assert limiter.wait_s("a") > 0


def test_callers_that_are_gone_are_forgotten() -> None:
    time = Time()
    limiter = RateLimiter(per_s=1, burst=1, now=time)
    for number in range(30_000):
        limiter.spend(f"{number}")
        time.now += 1
    assert len(limiter._full_at) <= 10_000


async def test_too_many_requests_of_one_address(tmp_path: Path) -> None:
    app = guarded(tmp_path, rate_limit=0.001, rate_burst=2)

    @app.get("/v1/jobs")
    async def jobs() -> list[str]:
        return []

    @app.get("/livez")
    async def livez() -> str:
        return "ok"

    async with reach(app) as one, reach(app, "10.0.0.2") as other:
        assert [(await one.get("/v1/jobs")).status_code for _ in range(3)] == [200, 200, 429]
        refused = await one.get("/v1/jobs")
        is_problem(refused, ProblemType.RATE_LIMITED)
        assert 990 < int(refused.headers["Retry-After"]) <= 1000
        assert (await other.get("/v1/jobs")).status_code == 200
        assert (await one.get("/livez")).status_code == 200


def with_rates(burst: int, by_token: bool) -> FastAPI:
    """An application whose one route knows only tokens that begin with `good`."""
    app = FastAPI()
    app.add_middleware(RateLimits, per_s=0.001, burst=burst, by_token=by_token)

    @app.get("/v1/jobs")
    async def jobs(request: Request) -> Response:
        known = request.headers["authorization"].partition(" ")[2].strip().startswith("good")
        return Response(status_code=200 if known else 401)

    return app


@pytest.mark.parametrize(
    ("by_token", "authorizations", "expected"),
    [
        # Space around a token makes no other one of it.
        (True, ["Bearer good1", "Bearer good1", "Bearer  good1", "bearer good1 "], [200, 429, 429, 429]),
        (False, ["Bearer good1", "Bearer good2"], [200, 429]),
    ],
)  # fmt: skip
async def test_each_token_has_its_own_rate(by_token: bool, authorizations: list[str], expected: list[int]) -> None:
    async with reach(with_rates(1, by_token)) as http:
        answers = [await http.get("/v1/jobs", headers={"Authorization": each}) for each in authorizations]
    assert [answer.status_code for answer in answers] == expected


async def test_guessing_tokens_uses_up_the_rate_of_the_address() -> None:
    async with reach(with_rates(3, by_token=True)) as http:
        guesses = [await http.get("/v1/jobs", headers={"Authorization": f"Bearer {guess}"}) for guess in range(5)]
    assert [answer.status_code for answer in guesses] == [401, 401, 401, 429, 429]


# Tags and compression


@pytest.mark.parametrize("path", ["/v1/jobs/{id}", "/v1/jobs?limit=1", "/v1/jobs/{id}/overlap", "/v1/jobs/{id}/steps"])
async def test_an_unchanged_answer_is_not_sent_again(plane: Plane, path: str) -> None:
    job_id = await plane.with_steps(2)
    path = path.replace("{id}", job_id)
    first = await plane.http.get(path)
    tag = first.headers["ETag"]
    assert first.headers["Cache-Control"] == "private, no-cache"
    for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        again = await plane.http.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["ETag"] == tag
        assert "content-type" not in again.headers
    assert (await plane.http.get(path, headers={"If-None-Match": 'W/"other"'})).content == first.content


async def test_a_changed_answer_is(plane: Plane) -> None:
    job_id = await plane.submit()
    tag = (await plane.http.get(f"/v1/jobs/{job_id}")).headers["ETag"]
    await plane.rounds(1)
    answer = await plane.http.get(f"/v1/jobs/{job_id}", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.json()["state"]) == (200, "starting")


async def test_noes_have_no_tag(plane: Plane) -> None:
    answer = await plane.http.get("/v1/jobs/job-nope", headers={"If-None-Match": "*"})
    assert answer.status_code == 404
    assert "ETag" not in answer.headers


async def test_large_answers_are_compressed_and_keep_their_tag(plane: Plane) -> None:
    job_id = await plane.with_steps(50)
    path = f"/v1/jobs/{job_id}/steps"
    plain = await plane.http.get(path, headers={"Accept-Encoding": "identity"})
    packed = await plane.http.get(path, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 5
    assert packed.content == plain.content
    assert packed.headers["ETag"] == plain.headers["ETag"]
    small = await plane.http.get("/livez", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in small.headers


async def test_what_is_no_request_passes(tmp_path: Path) -> None:
    """The lifespan, which has no headers and no path."""
    sent: list[Message] = []
    incoming = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Message:
        return next(incoming)

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    await guarded(tmp_path)(scope, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_an_unknown_method_is_told_all_that_the_address_knows(plane: Plane) -> None:
    for path, methods in (("/v1/jobs", "GET, POST"), ("/v1/jobs/job-1", "DELETE, GET"), ("/livez", "GET")):
        answer = await plane.http.request("PATCH", path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, methods)
