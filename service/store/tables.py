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


metadata = MetaData()

# Eight bytes, which any integer of SQLite has anyway.
_COUNT = Integer().with_variant(BigInteger(), "postgresql")
_STATE = Enum(JobState, native_enum=False, length=16, values_callable=lambda states: [state.value for state in states])


def _job_id() -> ForeignKey:
    return ForeignKey("jobs.id", ondelete="CASCADE")


jobs = Table(
    "jobs",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("name", String(64), nullable=False),
    Column("project", String(64), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", _STATE, nullable=False, index=True),
    Column("reason", Text),
    Column("stop_requested", Boolean, nullable=False, default=False),
    Column("on_ray", Boolean, nullable=False, default=False),
    Column("has_steps", Boolean, nullable=False, default=False),
    Column("submitted_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("attempts", Integer, nullable=False, default=0),
    Column("dropped_samples", _COUNT, nullable=False, default=0),
    Column("token_hash", String(64)),
    Column("spec", Text, nullable=False),
    Column("plan", Text),
    Column("result", Text),
    Column("failure", Text),
    sqlite_autoincrement=True,
)
Index("jobs_by_project", jobs.c.project, jobs.c.number)

submissions = Table(
    "submissions",
    metadata,
    Column("key", String(255), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("job_id", _job_id(), nullable=False, index=True),
    Column("answer", Text, nullable=False),
)

steps = Table(
    "steps",
    metadata,
    # In this order the key serves both the page after a step and the newest step of a job.
    Column("job_id", _job_id(), primary_key=True),
    Column("step", _COUNT, primary_key=True),
    Column("rank", Integer, primary_key=True),
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
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("job_id", _job_id(), nullable=False, index=True),
    Column("time", UtcTime, nullable=False),
    Column("state", _STATE, nullable=False),
    Column("reason", Text),
    sqlite_autoincrement=True,
)
