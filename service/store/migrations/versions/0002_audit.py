"""What requests change is written down; idempotency keys belong to a project."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


_count = sa.Integer().with_variant(sa.BigInteger(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("number", _count, primary_key=True, autoincrement=True),
        sa.Column("time", sa.DateTime, nullable=False),
        sa.Column("actor", sa.String(64)),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False, index=True),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sqlite_autoincrement=True,
    )
    op.execute(
        "UPDATE submissions SET key = (SELECT project FROM jobs WHERE jobs.id = submissions.job_id) || '/' || key"
    )
