"""Workers are known, clients take turns and share jobs, keys expire

An older program that is still running goes on working on this schema: what it does not know has a
default, and nothing that it uses is gone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

QUEUED = sa.text("state = 'queued'")
# Turns between clients: the first queued job of each client is one entry of these.
CLAIMS = {
    "ix_jobs_turn": ["needs_gpu", "client", "priority", "created_at", "id"],
    "ix_jobs_turn_device": ["needs_gpu", "device", "client", "priority", "created_at", "id"],
}


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("devices", sa.JSON(none_as_null=True)),
        sa.Column("engines", sa.JSON(), nullable=False),
        sa.Column("packages", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("drain", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index("ix_workers_seen_at", "workers", ["seen_at"])
    op.create_table(
        "client_turns",
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("client", name=op.f("pk_client_turns")),
    )
    for column in (
        sa.Column("engine", sa.Text(), nullable=False, server_default=""),
        sa.Column("clients", sa.JSON(), nullable=False, server_default="[]"),
        sa.Column("trial_count", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("trace", sa.Text(), nullable=False, server_default=""),
        sa.Column("started_at", sa.DateTime(timezone=True)),
    ):
        op.add_column("jobs", column)
    op.add_column("idempotency_keys", sa.Column("job_ids", sa.JSON(none_as_null=True)))
    op.add_column("api_keys", sa.Column("expires_at", sa.DateTime(timezone=True)))
    for name in ("ix_jobs_claim", "ix_jobs_claim_device"):
        op.drop_index(name, "jobs")
    for name, columns in CLAIMS.items():
        op.create_index(name, "jobs", columns, sqlite_where=QUEUED, postgresql_where=QUEUED)
    op.create_index("ix_jobs_page_client", "jobs", ["client", "created_at", "id"])
