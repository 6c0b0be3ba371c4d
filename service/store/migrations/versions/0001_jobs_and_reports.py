"""Jobs, their submissions and events, and what they report.

Databases from before migrations have these tables without a version, and the oldest lack some of the tables and
columns. So this migration creates what is missing and keeps what is there.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_tables = sa.MetaData()
_count = sa.Integer().with_variant(sa.BigInteger(), "postgresql")


def _job_id() -> sa.ForeignKey:
    return sa.ForeignKey("jobs.id", ondelete="CASCADE")


_jobs = sa.Table(
    "jobs",
    _tables,
    sa.Column("number", _count, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("project", sa.String(64), nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("reason", sa.Text),
    sa.Column("stop_requested", sa.Boolean, nullable=False),
    sa.Column("on_ray", sa.Boolean, nullable=False),
    sa.Column("has_steps", sa.Boolean, nullable=False),
    sa.Column("submitted_at", sa.DateTime, nullable=False),
    sa.Column("started_at", sa.DateTime),
    sa.Column("ended_at", sa.DateTime),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("dropped_samples", _count, nullable=False),
    sa.Column("token_hash", sa.String(64)),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("plan", sa.Text),
    sa.Column("result", sa.Text),
    sa.Column("failure", sa.Text),
    sqlite_autoincrement=True,
)
sa.Index("jobs_by_project", _jobs.c.project, _jobs.c.number)

sa.Table(
    "submissions",
    _tables,
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("job_id", _job_id(), nullable=False, index=True),
    sa.Column("answer", sa.Text, nullable=False),
)

sa.Table(
    "steps",
    _tables,
    sa.Column("job_id", _job_id(), primary_key=True),
    sa.Column("step", _count, primary_key=True, autoincrement=False),
    sa.Column("rank", _count, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("time", sa.DateTime, nullable=False),
    sa.Column("samples", _count, nullable=False),
    sa.Column("step_ms", sa.Float, nullable=False),
    sa.Column("compute_ms", sa.Float, nullable=False),
    sa.Column("comm_ms", sa.Float, nullable=False),
    sa.Column("exposed_ms", sa.Float, nullable=False),
    sa.Column("hidden_ms", sa.Float, nullable=False),
    sa.Column("comm_overlap", sa.Float),
    sa.Column("ids", _count, nullable=False),
    sa.Column("overlapped_ids", _count),
    sa.Column("id_overlap", sa.Float),
    sa.Column("loss", sa.Float),
    sa.Column("data_wait_ms", sa.Float, nullable=False),
    sa.Column("collectives", sa.LargeBinary, nullable=False),
    sa.Column("clock_offset_ms", sa.Float),
    sa.Column("clock_uncertainty_ms", sa.Float),
    sqlite_with_rowid=False,
)

sa.Table(
    "worker_groups",
    _tables,
    sa.Column("job_id", _job_id(), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("world_size", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)

sa.Table(
    "events",
    _tables,
    sa.Column("number", _count, primary_key=True, autoincrement=True),
    sa.Column("job_id", _job_id(), nullable=False, index=True),
    sa.Column("time", sa.DateTime, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text),
    sqlite_autoincrement=True,
)


def upgrade() -> None:
    connection = op.get_bind()
    _tables.create_all(connection)
    found = sa.inspect(connection)
    for table in _tables.sorted_tables:
        known = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                op.add_column(table.name, sa.Column(column.name, column.type))
