"""Messages to endpoints are kept until they are taken."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    count = sa.Integer().with_variant(sa.BigInteger(), "postgresql")
    op.create_table(
        "webhook_deliveries",
        sa.Column("number", count, primary_key=True, autoincrement=True),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("message_id", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.Column("due_at", sa.DateTime, nullable=False),
        sa.Column("ended_at", sa.DateTime),
        sqlite_autoincrement=True,
    )
    op.create_index("webhook_deliveries_due", "webhook_deliveries", ["endpoint", "state", "due_at"])
    op.create_index("webhook_deliveries_ended", "webhook_deliveries", ["ended_at"])
    op.create_table(
        "webhook_endpoints",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("delivered", count, nullable=False),
        sa.Column("failed_attempts", count, nullable=False),
        sa.Column("given_up", count, nullable=False),
        sa.Column("last_success_at", sa.DateTime),
        sa.Column("last_error_at", sa.DateTime),
        sa.Column("last_error", sa.Text),
        sa.Column("gone_url", sa.String(64)),
        sqlite_with_rowid=False,
    )
