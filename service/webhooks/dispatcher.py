"""Sends what the outbox holds: to each endpoint by a task of its own, so that none waits for another.

A message goes out at least once, under the same id each time. Messages about one job go to an endpoint one after the
other in their order; one that has failed does not hold up those behind it, whose numbers tell the order.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby

import structlog

from service.problems import Problem, ProblemType
from service.store.engine import DatabaseUnavailableError
from service.store.webhooks import Delivery, Tally, WebhookStore
from service.webhooks.backoff import SCHEDULE, pause_after
from service.webhooks.endpoints import Endpoint
from service.webhooks.messages import Message, MessageType, Pinged, new_message_id
from service.webhooks.sender import Outcome, Sender
from service.webhooks.shapes import Webhook, Webhooks, WebhookTest

log = structlog.get_logger(__name__)

AT_ONCE = 4
"""So many messages may be on their way to one endpoint."""

KEPT = timedelta(days=7)
"""So long a message that was taken or given up stays in the database."""

_BATCH = 64
_PAUSE_S = 1.0
_TIDY_EVERY_S = 600.0


class Dispatcher:
    """The one that sends. `now` tells what is due, `chance` gives numbers from 0 to 1 that spread out attempts."""

    def __init__(
        self,
        to: Sequence[Endpoint],
        store: WebhookStore,
        now: Callable[[], datetime],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._to = {endpoint.name: endpoint for endpoint in to}
        self._senders = {endpoint.name: Sender(endpoint) for endpoint in to}
        self._store, self._now, self._chance = store, now, chance
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(self) -> None:
        """Run until cancelled. What one endpoint does, and an error, holds up nothing else."""
        async with asyncio.TaskGroup() as tasks:
            for name in self._to:
                tasks.create_task(self._again_and_again(partial(self.send_due, name), _PAUSE_S), name=f"to {name}")
            tasks.create_task(self._again_and_again(self.tidy, _TIDY_EVERY_S), name="webhooks are tidied up")

    async def close(self) -> None:
        for sender in self._senders.values():
            await sender.close()

    async def send_due(self, name: str) -> bool:
        """Try to send to an endpoint what is due now; whether there may be more."""
        endpoint = self._to[name]
        due = await self._store.due(name, self._now(), _BATCH)
        if not due:
            return False
        if await self._store.is_gone(name, endpoint.url_hash):
            await self._gone(endpoint, None)
            return False
        slots = asyncio.Semaphore(AT_ONCE)
        stopped = asyncio.Event()

        async def tell(messages: Sequence[Delivery]) -> None:
            async with slots:
                for message in messages:
                    if not stopped.is_set() and await self._send(endpoint, message):
                        stopped.set()

        by_job = groupby(sorted(due, key=lambda message: message.job_id), key=lambda message: message.job_id)
        jobs = sorted((list(messages) for _, messages in by_job), key=lambda messages: messages[0].number)
        ends = await asyncio.gather(*(tell(messages) for messages in jobs), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
        return len(due) == _BATCH

    async def tidy(self) -> bool:
        """Give up what no endpoint of the file waits for, and delete what is long over; whether there is more."""
        now = self._now()
        if given_up := await self._store.give_up_strangers(self._to, now - SCHEDULE, now):
            log.error("webhooks_given_up", why="their endpoint is not in the webhooks file", messages=given_up)
        return await self._store.forget_some(now - KEPT)

    async def overview(self) -> Webhooks:
        """All endpoints, and how they get on."""
        tallies = await self._store.tallies()
        return Webhooks(items=[_shown(each, tallies.get(each.name, Tally())) for each in self._to.values()])

    async def test(self, name: str, caller: str | None) -> WebhookTest:
        """Send a message that says nothing, once and now. Raises `Problem` if there is no such endpoint."""
        endpoint = self._to.get(name)
        if endpoint is None:
            known = f"known are {', '.join(self._to)}" if self._to else "OVERLANE_WEBHOOKS_FILE names them"
            raise Problem(ProblemType.NOT_FOUND, f"no webhook has the name {name!r}; {known}")
        now, message_id = self._now(), new_message_id()
        message = Message(type=MessageType.PING, timestamp=now, data=Pinged(endpoint=name))
        outcome = await self._senders[name].send(message_id, message.model_dump_json(), now)
        await self._store.answered(name, self._now(), outcome.error)
        log.info("webhook_tested", endpoint=name, caller=caller, message_id=message_id, error=outcome.error)
        return WebhookTest(name=name, message_id=message_id, status=outcome.status, error=outcome.error)

    async def _again_and_again(self, work: Callable[[], Awaitable[bool]], pause_s: float) -> None:
        away = False
        while True:
            more = False
            try:
                more = await work()
                away = False
            except DatabaseUnavailableError as error:
                if not away:
                    log.warning("webhooks_wait_for_the_database", error=str(error))
                away = True
            except Exception:
                log.exception("webhooks_failed")
            await self._sleep(0 if more else pause_s)

    async def _send(self, endpoint: Endpoint, message: Delivery) -> bool:
        """Whether the endpoint has said that it is gone."""
        outcome = await self._senders[endpoint.name].send(message.message_id, message.body, self._now())
        if outcome.error is None:
            await self._store.delivered(message, self._now())
        elif outcome.gone:
            await self._gone(endpoint, outcome.error)
        else:
            await self._failed(message, outcome)
        return outcome.gone

    async def _failed(self, message: Delivery, outcome: Outcome) -> None:
        assert outcome.error is not None
        now, attempts = self._now(), message.attempts + 1
        pause = pause_after(attempts, self._chance)
        await self._store.failed(message, now, outcome.error, None if pause is None else now + pause)
        facts = {"endpoint": message.endpoint, "job_id": message.job_id, "message_id": message.message_id}
        if pause is None:
            log.error("webhook_given_up", **facts, attempts=attempts, error=outcome.error)
        else:
            again_in_s = round(pause.total_seconds())
            log.warning("webhook_not_taken", **facts, attempts=attempts, error=outcome.error, again_in_s=again_in_s)

    async def _gone(self, endpoint: Endpoint, error: str | None) -> None:
        """Stop sending. `error` is what it has said just now; None: it has said so before."""
        given_up = await self._store.gone(endpoint.name, endpoint.url_hash, self._now(), error)
        write = log.info if error is None else log.error
        write("webhook_gone", endpoint=endpoint.name, given_up=given_up)


def _shown(endpoint: Endpoint, tally: Tally) -> Webhook:
    return Webhook(
        name=endpoint.name,
        url=endpoint.shown_url,
        project=endpoint.project,
        states=None if endpoint.states is None else sorted(endpoint.states),
        gone=tally.gone_url == endpoint.url_hash,
        pending=tally.pending,
        delivered=tally.delivered,
        failed_attempts=tally.failed_attempts,
        given_up=tally.given_up,
        last_success_at=tally.last_success_at,
        last_error_at=tally.last_error_at,
        last_error=tally.last_error,
    )
