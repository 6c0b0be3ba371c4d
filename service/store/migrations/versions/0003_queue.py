"""Jobs that go back to the queue."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("first_attempt", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("losses", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("preempted_by", sa.String(64)))
    op.add_column("jobs", sa.Column("requeued", sa.Text))
    op.add_column("jobs", sa.Column("not_before", sa.DateTime))
