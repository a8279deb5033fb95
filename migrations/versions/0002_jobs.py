"""Jobs and their events, watches, nightly runs, API keys"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

QUEUED = sa.text("state = 'queued'")
COALESCIBLE = sa.text("state IN ('queued', 'leased', 'running') AND NOT cancel_requested")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("key_hash", name=op.f("uq_api_keys_key_hash")),
        sa.UniqueConstraint("name", name=op.f("uq_api_keys_name")),
    )
    op.create_table(
        "nightly_runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("date", sa.Date(), nullable=False),
        sa.Column("summary", sa.JSON(none_as_null=True)),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nightly_runs")),
        sa.UniqueConstraint("schedule", "date", name=op.f("uq_nightly_runs_schedule_date")),
    )
    op.create_table(
        "watches",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("watch", sa.JSON(), nullable=False),
        sa.Column("watch_key", sa.String(length=64), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_watches")),
        sa.UniqueConstraint("watch_key", name=op.f("uq_watches_watch_key")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("request_key", sa.String(length=64), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("needs_gpu", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True)),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("event_count", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer()),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("available_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("announced_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_jobs_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(
        "ix_jobs_claim",
        "jobs",
        ["needs_gpu", "priority", "created_at", "id"],
        sqlite_where=QUEUED,
        postgresql_where=QUEUED,
    )
    op.create_index(
        "ix_jobs_claim_device",
        "jobs",
        ["needs_gpu", "device", "priority", "created_at", "id"],
        sqlite_where=QUEUED,
        postgresql_where=QUEUED,
    )
    op.create_index(
        "ix_jobs_announced",
        "jobs",
        ["announced_at"],
        sqlite_where=QUEUED,
        postgresql_where=QUEUED,
    )
    op.create_index("ix_jobs_lease", "jobs", ["state", "lease_expires_at"])
    op.create_index("ix_jobs_page", "jobs", ["created_at", "id"])
    op.create_index("ix_jobs_page_device", "jobs", ["device", "created_at", "id"])
    op.create_index("ix_jobs_page_model", "jobs", ["model", "created_at", "id"])
    op.create_index("ix_jobs_page_state", "jobs", ["state", "created_at", "id"])
    op.create_index("ix_jobs_request_key", "jobs", ["request_key", "finished_at"])
    op.create_index(
        "uq_jobs_unfinished",
        "jobs",
        ["request_key"],
        unique=True,
        sqlite_where=COALESCIBLE,
        postgresql_where=COALESCIBLE,
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_idempotency_keys_job_id_jobs")
        ),
        sa.PrimaryKeyConstraint("client", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"])
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_job_events")),
    )
