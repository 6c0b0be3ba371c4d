"""Steps of jobs that ended long ago lie in an archive."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("steps_archived_at", sa.DateTime))
