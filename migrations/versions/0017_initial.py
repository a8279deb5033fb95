"""All tables"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = None

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
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("key_hash", name=op.f("uq_api_keys_key_hash")),
        sa.UniqueConstraint("name", name=op.f("uq_api_keys_name")),
    )
    op.create_table(
        "client_turns",
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("client", name=op.f("pk_client_turns")),
    )
    op.create_table(
        "environments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("engine_version", sa.Text(), nullable=False),
        sa.Column("triton", sa.Text(), nullable=False),
        sa.Column("kernel_hash", sa.Text(), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("cuda", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("backends", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environments")),
        sa.UniqueConstraint("fingerprint", name=op.f("uq_environments_fingerprint")),
    )
    op.create_index(op.f("ix_environments_device_engine"), "environments", ["device", "engine"])
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
        "problems",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_problems")),
        sa.UniqueConstraint("spec", name=op.f("uq_problems_spec")),
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
    op.create_index(op.f("ix_workers_seen_at"), "workers", ["seen_at"])
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("measure", sa.Text(), nullable=False),
        sa.Column("effort", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("points", sa.JSON(), nullable=False),
        sa.Column("space", sa.Text(), nullable=False),
        sa.Column("recording", sa.Text(), nullable=False),
        sa.Column("routing", sa.Text(), server_default="", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("totals", sa.JSON(none_as_null=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
            name=op.f("fk_runs_environment_id_environments"),
        ),
        sa.ForeignKeyConstraint(
            ["problem_id"], ["problems.id"], name=op.f("fk_runs_problem_id_problems")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("fingerprint", name=op.f("uq_runs_fingerprint")),
    )
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_sessions_key_id_api_keys")
        ),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_expires_at"), "sessions", ["expires_at"])
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
        sa.Column("engine", sa.Text(), server_default="", nullable=False),
        sa.Column("clients", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("trial_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("gpu_s", sa.Double()),
        sa.Column("gpu_idle_s", sa.Double()),
        sa.Column("cpu_s", sa.Double()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_jobs_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(
        "ix_jobs_announced", "jobs", ["announced_at"], sqlite_where=QUEUED, postgresql_where=QUEUED
    )
    op.create_index("ix_jobs_lease", "jobs", ["state", "lease_expires_at"])
    op.create_index("ix_jobs_page", "jobs", ["created_at", "id"])
    op.create_index("ix_jobs_page_client", "jobs", ["client", "created_at", "id"])
    op.create_index("ix_jobs_page_device", "jobs", ["device", "created_at", "id"])
    op.create_index("ix_jobs_page_model", "jobs", ["model", "created_at", "id"])
    op.create_index("ix_jobs_page_state", "jobs", ["state", "created_at", "id"])
    op.create_index("ix_jobs_request_key", "jobs", ["request_key", "finished_at"])
    op.create_index(
        "ix_jobs_turn",
        "jobs",
        ["needs_gpu", "client", "priority", "created_at", "id"],
        sqlite_where=QUEUED,
        postgresql_where=QUEUED,
    )
    op.create_index(
        "ix_jobs_turn_device",
        "jobs",
        ["needs_gpu", "device", "client", "priority", "created_at", "id"],
        sqlite_where=QUEUED,
        postgresql_where=QUEUED,
    )
    op.create_index(
        "uq_jobs_unfinished",
        "jobs",
        ["request_key"],
        unique=True,
        sqlite_where=COALESCIBLE,
        postgresql_where=COALESCIBLE,
    )
    op.create_table(
        "trials",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("new_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cached_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("backend", sa.Text(), server_default="triton", nullable=False),
        sa.Column("config_key", sa.Text(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("compile_status", sa.Text(), nullable=False),
        sa.Column("shared_bytes", sa.Integer()),
        sa.Column("n_regs", sa.Integer()),
        sa.Column("n_spills", sa.Integer()),
        sa.Column("compile_detail", sa.Text(), nullable=False),
        sa.Column("cached", sa.Boolean(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("median_us", sa.Double()),
        sa.Column("min_us", sa.Double()),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_trials_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint(
            "run_id",
            "part",
            "batch_size",
            "new_tokens",
            "cached_tokens",
            "config_key",
            "backend",
            name="uq_trials_place",
        ),
    )
    op.create_table(
        "winners",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("new_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cached_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("median_us", sa.Double()),
        sa.Column("compile_status", sa.Text(), nullable=False),
        sa.Column("shared_bytes", sa.Integer()),
        sa.Column("n_regs", sa.Integer()),
        sa.Column("n_spills", sa.Integer()),
        sa.Column("compile_detail", sa.Text(), nullable=False),
        sa.Column("cached", sa.Boolean(), nullable=False),
        sa.Column("incumbents", sa.JSON(), nullable=False),
        sa.Column("without_us", sa.Text(), server_default="", nullable=False),
        sa.Column("over", sa.Text(), server_default="", nullable=False),
        sa.Column("over_us", sa.Double()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
            name=op.f("fk_winners_environment_id_environments"),
        ),
        sa.ForeignKeyConstraint(
            ["problem_id"], ["problems.id"], name=op.f("fk_winners_problem_id_problems")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_winners_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_winners")),
        sa.UniqueConstraint(
            "environment_id",
            "problem_id",
            "status",
            "batch_size",
            "new_tokens",
            "cached_tokens",
            "part",
            name="uq_winners_place",
        ),
    )
    op.create_index(
        op.f("ix_winners_environment_id_published_at"),
        "winners",
        ["environment_id", "published_at"],
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=26), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_ids", sa.JSON(none_as_null=True)),
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
