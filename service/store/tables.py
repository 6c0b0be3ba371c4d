"""The tables. Times are UTC; models that are only read whole are kept as JSON text.

Every change here comes with a migration in `migrations/versions`, which must give the same tables.
"""

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)

from service.models import JobState


class UtcTime(TypeDecorator[datetime]):
    """Aware times in Python; UTC without an offset in the database, which SQLite needs."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class AnyText(TypeDecorator[str]):
    """Text of any characters. PostgreSQL knows no NUL, which becomes the replacement character."""

    impl = String
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__(length)
        self.length = length
        if length is None:
            self.impl = Text()  # type: ignore[assignment]  # declared as the class, and an instance in fact

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\0", "\ufffd")


metadata = MetaData()

# Eight bytes, which any integer of SQLite has anyway.
_COUNT = Integer().with_variant(BigInteger(), "postgresql")
_STATE = Enum(JobState, native_enum=False, length=16, values_callable=lambda states: [state.value for state in states])


def _job_id() -> ForeignKey:
    return ForeignKey("jobs.id", ondelete="CASCADE")


jobs = Table(
    "jobs",
    metadata,
    Column("number", _COUNT, primary_key=True, autoincrement=True),
    Column("id", AnyText(64), nullable=False, unique=True),
    Column("name", AnyText(64), nullable=False),
    Column("project", AnyText(64), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", _STATE, nullable=False, index=True),
    Column("reason", AnyText),
    Column("stop_requested", Boolean, nullable=False, default=False),
    Column("on_ray", Boolean, nullable=False, default=False),
    Column("has_steps", Boolean, nullable=False, default=False),
    Column("submitted_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("attempts", Integer, nullable=False, default=0),
    Column("dropped_samples", _COUNT, nullable=False, default=0),
    Column("token_hash", AnyText(64)),
    Column("spec", AnyText, nullable=False),
    Column("plan", AnyText),
    Column("result", AnyText),
    Column("failure", AnyText),
    Column("first_attempt", Integer, nullable=False, server_default="0"),
    Column("losses", Integer, nullable=False, server_default="0"),
    Column("preempted_by", AnyText(64)),
    Column("requeued", AnyText),
    Column("not_before", UtcTime),
    Column("steps_archived_at", UtcTime),
    # Until when it has to leave the queue for the first time.
    Column("starts_by", UtcTime),
    # The request that has submitted it, as a header of that name.
    Column("traceparent", AnyText(64)),
    Column("stop", AnyText),
    sqlite_autoincrement=True,
)
Index("jobs_by_project", jobs.c.project, jobs.c.number)
Index("jobs_in_queue", jobs.c.state, jobs.c.project, jobs.c.priority, jobs.c.number)

submissions = Table(
    "submissions",
    metadata,
    Column("key", AnyText(255), primary_key=True),
    Column("fingerprint", AnyText(64), nullable=False),
    Column("job_id", _job_id(), nullable=False, index=True),
    Column("answer", AnyText, nullable=False),
)

steps = Table(
    "steps",
    metadata,
    # In this order the key serves both the page after a step and the newest step of a job.
    Column("job_id", _job_id(), primary_key=True),
    Column("step", _COUNT, primary_key=True),
    Column("rank", _COUNT, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("time", UtcTime, nullable=False),
    Column("samples", _COUNT, nullable=False),
    Column("step_ms", Float, nullable=False),
    Column("compute_ms", Float, nullable=False),
    Column("comm_ms", Float, nullable=False),
    Column("exposed_ms", Float, nullable=False),
    Column("hidden_ms", Float, nullable=False),
    Column("comm_overlap", Float),
    Column("ids", _COUNT, nullable=False),
    Column("overlapped_ids", _COUNT),
    Column("id_overlap", Float),
    Column("loss", Float),
    Column("data_wait_ms", Float, nullable=False),
    Column("collectives", LargeBinary, nullable=False),
    Column("clock_offset_ms", Float),
    Column("clock_uncertainty_ms", Float),
    sqlite_with_rowid=False,
)

worker_groups = Table(
    "worker_groups",
    metadata,
    # How many ranks each attempt of a job has, as its plan says.
    Column("job_id", _job_id(), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("world_size", Integer, nullable=False),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    Column("number", _COUNT, primary_key=True, autoincrement=True),
    Column("job_id", _job_id(), nullable=False, index=True),
    Column("time", UtcTime, nullable=False),
    Column("state", _STATE, nullable=False),
    Column("reason", AnyText),
    sqlite_autoincrement=True,
)

audit = Table(
    "audit",
    metadata,
    # No reference to the job: what was done to it is known after it is deleted.
    Column("number", _COUNT, primary_key=True, autoincrement=True),
    Column("time", UtcTime, nullable=False),
    Column("actor", AnyText(64)),
    Column("action", AnyText(16), nullable=False),
    Column("job_id", AnyText(64), nullable=False, index=True),
    Column("project", AnyText(64), nullable=False),
    Column("before", AnyText),
    Column("after", AnyText),
    sqlite_autoincrement=True,
)

deliveries = Table(
    "webhook_deliveries",
    metadata,
    # No reference to the job: what has happened to it is told after it is deleted.
    Column("number", _COUNT, primary_key=True, autoincrement=True),
    Column("endpoint", AnyText(64), nullable=False),
    Column("message_id", AnyText(64), nullable=False),
    Column("job_id", AnyText(64), nullable=False),
    Column("body", AnyText, nullable=False),
    Column("state", AnyText(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("due_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    sqlite_autoincrement=True,
)
Index("webhook_deliveries_due", deliveries.c.endpoint, deliveries.c.state, deliveries.c.due_at)
Index("webhook_deliveries_ended", deliveries.c.ended_at)

endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("name", AnyText(64), primary_key=True),
    Column("delivered", _COUNT, nullable=False),
    Column("failed_attempts", _COUNT, nullable=False),
    Column("given_up", _COUNT, nullable=False),
    Column("last_success_at", UtcTime),
    Column("last_error_at", UtcTime),
    Column("last_error", AnyText),
    # The hash of the address that has said that it is gone.
    Column("gone_url", AnyText(64)),
    sqlite_with_rowid=False,
)
