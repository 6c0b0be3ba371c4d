"""What requests change is written down, and shown to admins."""

from pathlib import Path

import pytest

from service.cluster.gateway import RayStatus
from service.models import JobState
from service.problems import ProblemType
from service.security.audit import AuditAction, AuditEntry, AuditPage, JobFacts
from service.security.roles import NEEDS, NO_TOKENS
from service.settings import Settings
from service.store import jobs as store
from tests.unit.service.callers import Callers
from tests.unit.service.conftest import JOB, Plane
from tests.unit.service.fakes import START
from tests.unit.service.test_api import problem
from workers.job import parse_job

pytestmark = pytest.mark.anyio

MINE = JOB | {"queue": {"project": "ranking"}}


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path / "tokens.yaml")


@pytest.fixture
def settings(settings: Settings, callers: Callers) -> Settings:
    return settings.model_copy(update={"tokens_file": callers.file})


async def audit(plane: Plane, callers: Callers, **query: str | int) -> AuditPage:
    answer = await plane.http.get("/v1/audit", params=query, headers=callers.headers("root"))
    assert answer.status_code == 200, answer.text
    return AuditPage.model_validate_json(answer.content)


async def submitted(plane: Plane, callers: Callers, name: str = "ci") -> str:
    answer = await plane.http.post("/v1/jobs", json=MINE, headers=callers.headers(name))
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["id"]
    assert isinstance(job_id, str)
    return job_id


async def test_who_did_what_when_before_and_after(plane: Plane, callers: Callers) -> None:
    job_id = await submitted(plane, callers)
    await plane.rounds(1)
    plane.clock.forward(60)
    assert (await plane.http.post(f"/v1/jobs/{job_id}/stop", headers=callers.headers("root"))).status_code == 202
    plane.ray.says(job_id, RayStatus.STOPPED)
    await plane.rounds(2)
    spec = (await plane.services.jobs.get(NO_TOKENS, job_id)).spec
    assert (await plane.http.delete(f"/v1/jobs/{job_id}", headers=callers.headers("ci"))).status_code == 204

    deleted, stopped, added = (await audit(plane, callers)).items
    assert added == AuditEntry(
        number=added.number, time=START, actor="ci", action=AuditAction.SUBMIT, job_id=job_id, project="ranking",
        before=None, after=JobFacts(name="tiny", state=JobState.QUEUED),
    )  # fmt: skip
    assert (stopped.actor, stopped.action, stopped.job_id) == ("root", AuditAction.STOP, job_id)
    assert (stopped.time - START).total_seconds() == 60
    assert stopped.before == JobFacts(name="tiny", state=JobState.STARTING)
    assert stopped.after == JobFacts(name="tiny", state=JobState.STOPPING)
    assert (deleted.actor, deleted.action, deleted.after) == ("ci", AuditAction.DELETE, None)
    assert deleted.before == JobFacts(name="tiny", state=JobState.STOPPED, spec=spec)


async def test_what_changes_nothing_is_no_entry(plane: Plane, callers: Callers) -> None:
    job_id = await submitted(plane, callers)
    for _ in range(3):
        await plane.http.post(f"/v1/jobs/{job_id}/stop", headers=callers.headers("ci"))
    assert (await plane.http.delete(f"/v1/jobs/{job_id}", headers=callers.headers("ci"))).status_code == 409
    assert (await plane.http.post("/v1/jobs", json=MINE, headers=callers.headers("looker"))).status_code == 403
    assert (await plane.http.post("/v1/jobs", json={}, headers=callers.headers("root"))).status_code == 422
    await plane.rounds(2)
    assert [entry.action for entry in (await audit(plane, callers)).items] == [AuditAction.STOP, AuditAction.SUBMIT]


async def test_a_replayed_submission_is_one_change(plane: Plane, callers: Callers) -> None:
    headers = callers.headers("ci") | {"Idempotency-Key": "k1"}
    for _ in range(3):
        assert (await plane.http.post("/v1/jobs", json=MINE, headers=headers)).status_code == 202
    assert len((await audit(plane, callers)).items) == 1


async def test_entries_outlive_their_job_and_can_be_narrowed_to_it(plane: Plane, callers: Callers) -> None:
    first, second = await submitted(plane, callers), await submitted(plane, callers)
    await plane.http.post(f"/v1/jobs/{first}/stop", headers=callers.headers("ci"))
    await plane.rounds(2)
    await plane.http.delete(f"/v1/jobs/{first}", headers=callers.headers("ci"))
    actions = [entry.action for entry in (await audit(plane, callers, job_id=first)).items]
    assert actions == [AuditAction.DELETE, AuditAction.STOP, AuditAction.SUBMIT]
    assert [entry.job_id for entry in (await audit(plane, callers, job_id=second)).items] == [second]
    assert (await audit(plane, callers, job_id="\0")).items == []


async def test_pages_are_complete(plane: Plane, callers: Callers) -> None:
    ids = [await submitted(plane, callers) for _ in range(5)]
    seen: list[str] = []
    page = await audit(plane, callers, limit=2)
    while True:
        seen += [entry.job_id for entry in page.items]
        if page.next_cursor is None:
            break
        page = await audit(plane, callers, limit=2, cursor=page.next_cursor)
    assert seen == ids[::-1]
    answer = await plane.http.get("/v1/audit?cursor=x", headers=callers.headers("root"))
    assert problem(answer, ProblemType.INVALID_REQUEST)["errors"][0]["field"] == "cursor"


@pytest.mark.parametrize("action", list(AuditAction))
async def test_no_change_without_its_entry(
    plane: Plane, callers: Callers, monkeypatch: pytest.MonkeyPatch, action: AuditAction
) -> None:
    """The entry is written in the transaction of the change: if it cannot be, nothing has changed."""
    headers = callers.headers("root")
    running, ended = await submitted(plane, callers), await submitted(plane, callers)
    await plane.http.post(f"/v1/jobs/{ended}/stop", headers=headers)
    await plane.rounds(3)
    before = (await plane.http.get("/v1/jobs", headers=headers)).json()

    async def fails(*_: object) -> None:
        raise RuntimeError("no room for the entry")

    monkeypatch.setattr(store, "write_down", fails)
    request = {
        AuditAction.SUBMIT: ("POST", "/v1/jobs"),
        AuditAction.STOP: ("POST", f"/v1/jobs/{running}/stop"),
        AuditAction.DELETE: ("DELETE", f"/v1/jobs/{ended}"),
    }[action]
    body = MINE if action is AuditAction.SUBMIT else None
    problem(await plane.http.request(*request, json=body, headers=headers), ProblemType.INTERNAL)
    assert (await plane.http.get("/v1/jobs", headers=headers)).json() == before


def test_every_route_that_changes_something_is_known_here() -> None:
    """A new one needs an `AuditAction`, or a word here why it changes nothing."""
    reports = "POST /internal/v1/jobs/{job_id}/reports"  # of a job, not of a person
    plans = "POST /v1/plans"  # leave nothing behind
    tests = "POST /v1/webhooks/{name}/ping"  # change no job; the log says who made them
    changing = {route for route in NEEDS if not route.startswith("GET ")} - {reports, plans, tests}
    assert changing == {"POST /v1/jobs", "POST /v1/jobs/{job_id}/stop", "DELETE /v1/jobs/{job_id}"}
    assert len(AuditAction) == len(changing)


async def test_without_tokens_nobody_has_a_name(plane: Plane) -> None:
    job = await plane.services.jobs.submit(NO_TOKENS, parse_job(JOB), None)
    await plane.services.jobs.stop(NO_TOKENS, job.id)
    entries, _ = await plane.services.audit.page(None, None, 10)
    assert [(entry.actor, entry.project) for entry in entries] == [(None, "default")] * 2
