"""The front of each project's queue is found without reading the rest."""

import json
from datetime import timedelta

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("starts_by", sa.DateTime))
    op.create_index("jobs_in_queue", "jobs", ["state", "project", "priority", "number"])
    jobs = sa.table(
        "jobs", sa.column("number", sa.BigInteger), sa.column("state", sa.String), sa.column("spec", sa.Text),
        sa.column("submitted_at", sa.DateTime), sa.column("starts_by", sa.DateTime),
    )  # fmt: skip
    connection = op.get_bind()
    for job in connection.execute(sa.select(jobs).where(jobs.c.state == "queued")).all():
        deadline_s = json.loads(job.spec).get("queue", {}).get("deadline_s")
        if deadline_s is not None:
            starts_by = job.submitted_at + timedelta(seconds=deadline_s)
            connection.execute(sa.update(jobs).where(jobs.c.number == job.number).values(starts_by=starts_by))
