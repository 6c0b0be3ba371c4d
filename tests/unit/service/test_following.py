"""The client's side of following a job: pieces into events, and going on where a connection broke."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service import client as clients
from service.client import Client, ServiceError, ServiceUnreachableError
from service.following import JobEnded, JobEvent, NotEventsError, together
from service.models import JobState, LatestStep, StateChange
from service.problems import ProblemType
from service.telemetry.feed import Feed
from tests.unit.service.test_cli import no

WHEN = datetime(2026, 1, 2, tzinfo=UTC)
STEP = LatestStep(
    step=3, steps=9, rank_count=2, samples_per_s=None, step_ms=1.0, compute_ms=1.0, comm_ms=0.0, exposed_ms=0.0,
    comm_overlap=None, id_overlap=None, loss=None,
)  # fmt: skip


def change(number: int, state: JobState = JobState.QUEUED, reason: str | None = None) -> StateChange:
    return StateChange(number=number, time=WHEN, state=state, reason=reason)


def stream(*changes: StateChange, step: bool = False, beat: bool = False, end: str | None = "") -> str:
    """What the service sends; `end` is the state at the end, None for a deleted job, empty for no end."""
    feed = Feed()
    for each in changes:
        feed.change(each)
    if step:
        feed.step(STEP)
    if beat:
        feed.beat()
    if end != "":
        feed.end(end)
    return b"".join(feed._recent).decode()


@given(st.lists(st.integers(0, 400), max_size=6), st.text(max_size=30))
@settings(deadline=None, max_examples=50)
def test_events_may_be_cut_anywhere(cuts: list[int], reason: str) -> None:
    first, last = change(1, reason=reason), change(2, JobState.FAILED, "a\r\n\nb\u2028c\x85d")
    text = stream(first, last, step=True, beat=True, end="failed")
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[begin:until] for begin, until in pairwise(edges)]
    events = [event for each in together(pieces) for event in each]
    assert events == [first, last, STEP, JobEnded(JobState.FAILED)]


def test_what_came_together_stays_together() -> None:
    pieces = [stream(change(1), step=True), stream(beat=True), stream(end=None)]
    assert list(together(pieces)) == [[change(1), STEP], [], [JobEnded(None)]]


def test_kinds_of_events_that_are_not_known_are_passed_over() -> None:
    assert list(together(["event: later\ndata: {}\n\n"])) == [[]]


@pytest.mark.parametrize("text", ["event: state\ndata: {}\n\n", "event: step\ndata: x\n\n", "event: end\ndata: no\n\n"])
def test_events_that_are_none(text: str) -> None:
    with pytest.raises(NotEventsError):
        list(together([text]))


class Breaking(httpx.SyncByteStream):
    """A connection that breaks after some text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __iter__(self) -> Iterator[bytes]:
        yield self._text.encode()
        raise httpx.ReadError("broken")


def follow(monkeypatch: pytest.MonkeyPatch, answers: list[httpx.Response]) -> tuple[list[JobEvent], list[str]]:
    """The events that a client sees of a service that gives these answers, and with which ids it asked."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/jobs/job-1/events"
        asked.append(request.headers["Last-Event-ID"])
        if not answers:
            raise httpx.ConnectError("refused", request=request)
        return answers.pop(0)

    monkeypatch.setattr(clients, "_FOLLOW_PAUSE_S", 0)
    with Client("http://overlane.test", transport=httpx.MockTransport(answer)) as client:
        seen: list[JobEvent] = []
        try:
            for events in client.follow_events("job-1"):
                seen += events
        except (ServiceError, ServiceUnreachableError) as error:
            seen.append(error)  # type: ignore[arg-type]
    return seen, asked


def test_going_on_where_a_connection_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    running, failed = change(4, JobState.RUNNING), change(9, JobState.FAILED)
    cut = stream(failed)[:-3]
    seen, asked = follow(
        monkeypatch,
        [
            httpx.Response(200, stream=Breaking(stream(change(2)) + cut)),
            httpx.Response(200, text=stream(running)),
            no(ProblemType.NOT_READY, "starting"),
            no(ProblemType.RATE_LIMITED, "too many at once"),
            httpx.Response(200, text=stream(failed, end="failed")),
        ],
    )
    assert seen == [change(2), running, failed, JobEnded(JobState.FAILED)]
    assert asked == ["0", "2", "4", "4", "4"]


def test_no_service_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    [error], asked = follow(monkeypatch, [])
    assert isinstance(error, ServiceUnreachableError)
    assert asked == ["0"]


def test_a_service_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    [first, error], asked = follow(monkeypatch, [httpx.Response(200, text=stream(change(2)))])
    assert (first, type(error)) == (change(2), ServiceUnreachableError)
    assert len(asked) == 1 + clients._FOLLOW_TRIES + 1


def test_a_job_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [httpx.Response(200, text=stream(change(2))), no(ProblemType.UNKNOWN_JOB, "deleted")]
    [_, error], asked = follow(monkeypatch, answers)
    assert isinstance(error, ServiceError)
    assert asked == ["0", "2"]


def test_something_else_than_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    [error], _ = follow(monkeypatch, [httpx.Response(200, text="event: state\ndata: <html>\n\n")])
    assert isinstance(error, ServiceUnreachableError)
    assert "this version" in str(error)


def test_a_trace_is_asked_for_by_its_steps() -> None:
    notes: dict[str, Any] = {
        "job_id": "job-1", "first_step": None, "last_step": None, "ranks": 0, "begins_at": None,
        "clock_uncertainty_ms": None, "placement": "", "clocks": "",
    }  # fmt: skip
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, text=json.dumps({"traceEvents": [], "otherData": notes}))

    with Client("http://overlane.test", transport=httpx.MockTransport(answer)) as client:
        assert client.trace("job-1").traceEvents == []
        client.trace("job-1", "3-7")
    assert [url.removeprefix("http://overlane.test/v1/jobs/job-1/") for url in asked] == ["trace", "trace?steps=3-7"]
