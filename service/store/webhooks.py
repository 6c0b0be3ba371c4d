"""The messages to endpoints: written with what they tell of, kept until they are taken or given up.

No message is lost: whoever sees a change of state in the database sees its messages too. A row stays pending until its
end is written down, so a service that dies in between sends the message again, under the same id.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.jobs.reasons import readable
from service.security.roles import EVERY_PROJECT, Caller, Role
from service.store.database import Database
from service.store.tables import deliveries, endpoints
from service.webhooks.endpoints import Endpoint
from service.webhooks.messages import JobChanged, Message, MessageType, new_message_id

_DELETED_AT_ONCE = 5000
_COUNTERS = ("delivered", "failed_attempts", "given_up")


class DeliveryState(StrEnum):
    """What became of a message to an endpoint."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


@dataclass(frozen=True)
class Delivery:
    """A message to an endpoint; `attempts` to send it have failed so far."""

    number: int
    endpoint: str
    message_id: str
    job_id: str
    body: str
    attempts: int


@dataclass(frozen=True)
class Tally:
    """What is known of an endpoint; `gone_url` is the hash of its address when that said that it is gone."""

    pending: int = 0
    delivered: int = 0
    failed_attempts: int = 0
    given_up: int = 0
    last_success_at: datetime | None = None
    last_error_at: datetime | None = None
    last_error: str | None = None
    gone_url: str | None = None


class Outbox:
    """Writes messages within the transaction that makes the change."""

    def __init__(self, to: Sequence[Endpoint] = ()) -> None:
        self._to = to

    async def add(self, connection: AsyncConnection, at: datetime, change: JobChanged) -> None:
        """Tell of the change whoever wants to know; people of one project are named no jobs of others."""
        wanting = [endpoint for endpoint in self._to if endpoint.wants(change.project, change.state)]
        if not wanting:
            return
        message_id = new_message_id()
        rows = [
            {
                "endpoint": endpoint.name,
                "message_id": message_id,
                "job_id": change.job_id,
                "body": _body(at, change, endpoint.project),
                "state": DeliveryState.PENDING.value,
                "attempts": 0,
                "created_at": at,
                "due_at": at,
            }
            for endpoint in wanting
        ]
        await connection.execute(insert(deliveries), rows)


class WebhookStore:
    """Reads and moves on what the outbox wrote. One service at a time works on it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def due(self, endpoint: str, at: datetime, limit: int) -> list[Delivery]:
        """Messages whose time has come, in the order of what they tell of."""
        columns = [deliveries.c[name] for name in Delivery.__dataclass_fields__]
        query = select(*columns).where(_pending(endpoint), deliveries.c.due_at <= at)
        async with self._database.read() as connection:
            rows = await connection.execute(query.order_by(deliveries.c.number).limit(limit))
            return [Delivery(**row._asdict()) for row in rows]

    async def delivered(self, delivery: Delivery, at: datetime) -> None:
        """It was taken."""
        async with self._database.write() as connection:
            ended = await _end(connection, _this(delivery), DeliveryState.DELIVERED, at)
            await _note(connection, delivery.endpoint, last_success_at=at, delivered=ended)

    async def failed(self, delivery: Delivery, at: datetime, error: str, again_at: datetime | None) -> None:
        """It was not taken, and is sent again at `again_at`; None: it is given up."""
        again = update(deliveries).where(_this(delivery)).values(attempts=delivery.attempts + 1)
        async with self._database.write() as connection:
            await connection.execute(again if again_at is None else again.values(due_at=again_at))
            given_up = 0
            if again_at is None:
                given_up = await _end(connection, _this(delivery), DeliveryState.GIVEN_UP, at)
            failure = {"last_error_at": at, "last_error": error, "failed_attempts": 1, "given_up": given_up}
            await _note(connection, delivery.endpoint, **failure)

    async def is_gone(self, endpoint: str, url_hash: str) -> bool:
        """Whether the endpoint has said that it is gone, when it had this address."""
        query = select(endpoints.c.gone_url).where(endpoints.c.name == endpoint)
        async with self._database.read() as connection:
            return (await connection.execute(query)).scalar() == url_hash

    async def gone(self, endpoint: str, url_hash: str, at: datetime, error: str | None) -> int:
        """The endpoint wants nothing any more; how many messages that gives up. `error`: it says so now."""
        said = {"last_error_at": at, "last_error": error, "failed_attempts": 1} if error else {}
        async with self._database.write() as connection:
            given_up = await _end(connection, _pending(endpoint), DeliveryState.GIVEN_UP, at)
            await _note(connection, endpoint, gone_url=url_hash, given_up=given_up, **said)
        return given_up

    async def answered(self, endpoint: str, at: datetime, error: str | None) -> None:
        """What a test came to. One that was taken shows that an endpoint that was gone is there again."""
        values = {"last_error_at": at, "last_error": error} if error else {"last_success_at": at, "gone_url": None}
        async with self._database.write() as connection:
            await _note(connection, endpoint, **values)

    async def give_up_strangers(self, known: Collection[str], created_before: datetime, at: datetime) -> int:
        """Give up what was written before then to endpoints that are none any more; how many messages."""
        strangers = and_(
            deliveries.c.state == DeliveryState.PENDING,
            deliveries.c.endpoint.not_in(known),
            deliveries.c.created_at < created_before,
        )
        async with self._database.write() as connection:
            return await _end(connection, strangers, DeliveryState.GIVEN_UP, at)

    async def forget_some(self, ended_before: datetime) -> bool:
        """Delete some of the messages that were taken or given up before then; whether there may be more of them."""
        some = select(deliveries.c.number).where(deliveries.c.ended_at < ended_before).limit(_DELETED_AT_ONCE)
        async with self._database.write() as connection:
            done = await connection.execute(delete(deliveries).where(deliveries.c.number.in_(some)))
        return done.rowcount == _DELETED_AT_ONCE

    async def tallies(self) -> dict[str, Tally]:
        """By name, what is known of each endpoint that there was something to tell of."""
        waiting = (
            select(deliveries.c.endpoint, func.count())
            .where(deliveries.c.state == DeliveryState.PENDING)
            .group_by(deliveries.c.endpoint)
        )
        async with self._database.read() as connection:
            pending = {row[0]: row[1] for row in await connection.execute(waiting)}
            known = {row.name: row._asdict() for row in await connection.execute(select(endpoints))}
        found = {}
        for name in {*pending, *known}:
            facts = {key: value for key, value in known.get(name, {}).items() if key != "name"}
            found[name] = Tally(pending=pending.get(name, 0), **facts)
        return found


def _body(at: datetime, change: JobChanged, reader: str | None) -> str:
    if change.reason is not None:
        people = Caller(name=None, role=Role.VIEWER, project=reader or EVERY_PROJECT)
        change = change.model_copy(update={"reason": readable(change.reason, people)})
    return Message(type=MessageType.STATE_CHANGED, timestamp=at, data=change).model_dump_json()


def _pending(endpoint: str) -> ColumnElement[bool]:
    return and_(deliveries.c.endpoint == endpoint, deliveries.c.state == DeliveryState.PENDING)


def _this(delivery: Delivery) -> ColumnElement[bool]:
    return and_(deliveries.c.number == delivery.number, deliveries.c.state == DeliveryState.PENDING)


async def _end(connection: AsyncConnection, which: ColumnElement[bool], state: DeliveryState, at: datetime) -> int:
    """How many messages have come to this end by this."""
    done = await connection.execute(update(deliveries).where(which).values(state=state, ended_at=at))
    return done.rowcount


async def _note(connection: AsyncConnection, endpoint: str, **values: Any) -> None:
    """Write down what was learnt of an endpoint; counters are added to."""
    added = {name: endpoints.c[name] + value if name in _COUNTERS else value for name, value in values.items()}
    noted = update(endpoints).where(endpoints.c.name == endpoint).values(**added)
    if (await connection.execute(noted)).rowcount == 0:
        # In words that both databases know; somebody else may do the same at this moment.
        first = "INSERT INTO webhook_endpoints (name, delivered, failed_attempts, given_up) VALUES (:name, 0, 0, 0)"
        await connection.execute(text(f"{first} ON CONFLICT DO NOTHING"), {"name": endpoint})
        await connection.execute(noted)
