"""Jobs wait for the jobs that compile their kernels, and say what they cost

An older program neither waits nor says what a job cost; its workers give compile work back unread.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    compiles = sa.Column("compiles", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("jobs", compiles)
    op.add_column("jobs", sa.Column("after_id", sa.String(26)))
    for name in ("gpu_s", "gpu_idle_s", "cpu_s"):
        op.add_column("jobs", sa.Column(name, sa.Double()))
    queued = sa.text("after_id IS NOT NULL")
    op.create_index(
        "ix_jobs_after", "jobs", ["after_id"], sqlite_where=queued, postgresql_where=queued
    )
