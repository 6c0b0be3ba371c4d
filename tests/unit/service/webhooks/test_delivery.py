"""Changes of state reach whoever wants to know of them, signed, at least once, whatever dies in between."""

from typing import Any

import pytest
from standardwebhooks import WebhookVerificationError

from service.cluster.gateway import RayStatus
from service.models import JobState
from service.security.audit import AuditAction, Deed
from service.services import Services
from service.store import webhooks as store
from service.store.database import Database
from service.store.engine import DatabaseUnavailableError
from service.webhooks import dispatcher
from tests.unit.service.conftest import Plane
from tests.unit.service.fakes import START
from tests.unit.service.webhooks.conftest import LIFE, finished, rows, send, shown
from tests.unit.service.webhooks.receiver import OTHER_SECRET, SECRET, Receiver
from workers.job import parse_job

pytestmark = pytest.mark.anyio


async def test_every_change_of_a_job_is_told_signed_and_once(plane: Plane, ops: Receiver) -> None:
    job_id = await finished(plane)
    assert not await send(plane)
    assert ops.told == LIFE
    messages = ops.messages
    numbers = [message["data"].pop("number") for message in messages]
    assert numbers == sorted(set(numbers))
    assert messages[0] == {
        "type": "job.state_changed",
        "timestamp": plane.clock.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "data": {
            "job_id": job_id, "name": "tiny", "project": "default", "state": "queued", "before": None, "reason": None,
        },
    }  # fmt: skip
    assert len({each.id for each in ops.received}) == 3
    assert {(each.path, each.headers["content-type"]) for each in ops.received} == {("/hooks", "application/json")}
    assert not await send(plane)
    assert len(ops.received) == 3
    tally = await shown(plane)
    assert (tally.pending, tally.delivered, tally.failed_attempts, tally.given_up) == (0, 3, 0, 0)
    assert tally.last_success_at == plane.clock.time
    assert tally.last_error is None


async def test_every_way_in_which_a_state_changes_is_told(plane: Plane, ops: Receiver) -> None:
    """What the stream of events tells is what the messages tell, also of stops, losses and requeues."""
    job_id = await plane.started(retries={"max": 1})
    await plane.report(job_id)
    plane.ray.says(job_id, RayStatus.RUNNING)
    await plane.rounds(1)
    del plane.ray.jobs[job_id]
    plane.clock.forward(1)
    await plane.rounds(3)
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    plane.ray.says(job_id, RayStatus.STOPPED)
    await plane.rounds(2)
    await send(plane)
    async with plane.services.database.read() as connection:
        recorded = (await connection.exec_driver_sql("SELECT number, state, reason FROM events ORDER BY number")).all()
    data = [message["data"] for message in ops.messages]
    assert [(each["number"], each["state"], each["reason"]) for each in data] == [tuple(row) for row in recorded]
    assert [each["before"] for each in data] == [None, *(each["state"] for each in data[:-1])]
    assert {"queued", "starting", "stopping", "stopped"} <= {each["state"] for each in data}
    assert [each["state"] for each in data].count("queued") == 2


async def test_a_wrong_secret_and_a_changed_message_are_found(plane: Plane, ops: Receiver) -> None:
    await plane.submit()
    await send(plane)
    [message] = ops.received
    assert message.verified()["data"]["state"] == "queued"
    with pytest.raises(WebhookVerificationError):
        message.verified(OTHER_SECRET)
    for changes in (
        {"body": message.body.replace(b"tiny", b"tino")},
        {"headers": {**message.headers, "webhook-id": "msg_other"}},
        {"headers": {**message.headers, "webhook-timestamp": str(int(message.headers["webhook-timestamp"]) + 1)}},
    ):
        with pytest.raises(WebhookVerificationError):
            type(message)(**{**vars(message), **changes}).verified()


class TestTwoSecrets:
    @pytest.fixture
    def endpoints(self, ops: Receiver) -> dict[str, dict[str, Any]]:
        return {"ops": {"url": ops.url, "secret": f"{OTHER_SECRET} {SECRET}"}}

    async def test_while_a_secret_is_exchanged_both_will_do(self, plane: Plane, ops: Receiver) -> None:
        await plane.submit()
        await send(plane)
        [message] = ops.received
        assert message.verified(SECRET) == message.verified(OTHER_SECRET)


class TestFilters:
    @pytest.fixture
    def endpoints(self, ops: Receiver) -> dict[str, dict[str, Any]]:
        return {
            "ads": {"url": f"{ops.url}/ads", "project": "ads"},
            "ends": {"url": f"{ops.url}/ends", "states": ["succeeded", "failed"]},
        }

    async def test_only_what_is_wanted_is_told(self, plane: Plane, ops: Receiver) -> None:
        await finished(plane)
        mine = await plane.submit(queue={"project": "ads"})
        for name in ("ads", "ends"):
            await send(plane, name)
        told = [(each.path, each.verified()["data"]) for each in ops.received]
        assert [(path, data["state"]) for path, data in told] == [("/ads", "queued"), ("/ends", "succeeded")]
        assert told[0][1]["job_id"] == mine

    async def test_people_of_a_project_are_told_no_jobs_of_others(self, plane: Plane, ops: Receiver) -> None:
        job_id = await plane.submit(queue={"project": "ads"})
        reason = "makes room for job-of-somebody of another project"
        await plane.services.jobs._jobs.change(
            job_id, plane.clock.time, {JobState.QUEUED}, state=JobState.FAILED, reason=reason
        )
        for name in ("ads", "ends"):
            await send(plane, name)
        reasons = {each.path: each.verified()["data"]["reason"] for each in ops.received}
        assert reasons == {"/ads": "makes room for a job of another project", "/ends": reason}


async def test_a_service_that_dies_before_it_sends_sends_after_its_restart(plane: Plane, ops: Receiver) -> None:
    """And one that dies after it has sent, before that is written down, sends the same message again."""
    await finished(plane)
    ids = [row["message_id"] for row in await rows(plane)]
    for life in range(2):
        database = await Database.open(plane.settings.database)
        services = Services.build(plane.settings, database, plane.ray, plane.clock)
        if life == 0:

            async def killed(*_: object) -> None:
                raise KeyboardInterrupt

            services.webhooks._store.delivered = killed  # type: ignore[assignment,method-assign]
            with pytest.raises(KeyboardInterrupt):
                await services.webhooks._send(services.webhooks._to["ops"], (await due(services, plane))[0])
        else:
            await services.webhooks.send_due("ops")
        await services.webhooks.close()
        await database.close()
    assert [each.id for each in ops.received] == [ids[0], *ids]
    assert ops.received[0].body == ops.received[1].body
    assert ops.told == [LIFE[0], *LIFE]


async def due(services: Services, plane: Plane) -> list[store.Delivery]:
    return await services.webhooks._store.due("ops", plane.clock.time, 10)


async def test_a_change_that_is_not_committed_is_not_told(
    plane: Plane, ops: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await plane.submit()
    add = store.Outbox.add

    async def and_die(*arguments: Any) -> None:
        await add(*arguments)
        raise DatabaseUnavailableError("away")

    monkeypatch.setattr(store.Outbox, "add", and_die)
    await plane.http.post(f"/v1/jobs/{job_id}/stop")
    with pytest.raises(DatabaseUnavailableError):
        await plane.rounds(1)
    monkeypatch.undo()
    await send(plane)
    assert ops.told == LIFE[:1]
    assert await plane.state(job_id) is JobState.QUEUED


async def test_messages_of_a_deleted_job_still_go_out(plane: Plane, ops: Receiver) -> None:
    job_id = await finished(plane)
    assert (await plane.http.delete(f"/v1/jobs/{job_id}")).status_code == 204
    await send(plane)
    assert ops.told == LIFE


async def test_of_one_job_one_message_is_sent_after_the_other(plane: Plane, ops: Receiver) -> None:
    jobs = [await finished(plane, workers={"count": 1}) for _ in range(6)]
    while await send(plane):
        pass
    for job_id in jobs:
        told = [each["data"] for each in ops.messages if each["data"]["job_id"] == job_id]
        assert [(each["before"], each["state"]) for each in told] == LIFE


async def test_many_messages_go_out_in_several_rounds(
    plane: Plane, ops: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_BATCH", 4)
    for _ in range(3):
        await finished(plane)
    assert await send(plane)
    assert len(ops.received) == 4
    assert await send(plane)
    assert not await send(plane) or not await send(plane)
    assert len(ops.received) == 9


async def test_without_a_file_nothing_is_written(plane: Plane) -> None:
    bare = plane.settings.model_copy(update={"webhooks_file": None})
    services = Services.build(bare, plane.services.database, plane.ray, plane.clock)
    job_id = "job-20260102-030405-nobody"
    await services.jobs._jobs.add(job_id, parse_job({"name": "tiny"}), START, None, Deed(None, AuditAction.SUBMIT))
    assert await services.jobs._jobs.change(job_id, START, {JobState.QUEUED}, state=JobState.FAILED)
    assert await services.webhooks._store.tallies() == {}
    assert (await services.webhooks.overview()).items == []
    assert await rows(plane) == []
