"""The queue's tables. `tables.py` has the others."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from tuner.store.tables import UtcDateTime, metadata, runs, text_column

# As text, because a database uses a partial index only for a statement with the same condition,
# without parameters.
IS_QUEUED = text("state = 'queued'")
IS_COALESCIBLE = text("state IN ('queued', 'leased', 'running') AND NOT cancel_requested")


jobs = Table(
    "jobs",
    metadata,
    Column("id", String(26), primary_key=True),
    Column("request", JSON, nullable=False),
    Column("request_key", String(64), nullable=False),
    # The request has the next three as well; as columns they can be searched.
    text_column("device"),
    text_column("model"),
    Column("needs_gpu", Boolean, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    text_column("state"),
    text_column("client"),
    Column("attempts", Integer, nullable=False),
    text_column("owner"),
    Column("fence", Integer, nullable=False),
    Column("lease_expires_at", UtcDateTime),
    Column("cancel_requested", Boolean, nullable=False),
    Column("event_count", Integer, nullable=False),  # the number of the last event
    Column("run_id", ForeignKey(runs.c.id)),
    text_column("error"),
    Column("available_at", UtcDateTime, nullable=False),
    Column("announced_at", UtcDateTime, nullable=False),  # when workers were last woken for it
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
)
# With any filter, a keyset page is a walk along one of these indexes.
Index("ix_jobs_page", jobs.c.created_at, jobs.c.id)
Index("ix_jobs_page_state", jobs.c.state, jobs.c.created_at, jobs.c.id)
Index("ix_jobs_page_device", jobs.c.device, jobs.c.created_at, jobs.c.id)
Index("ix_jobs_page_model", jobs.c.model, jobs.c.created_at, jobs.c.id)
Index(
    "ix_jobs_claim",
    jobs.c.needs_gpu,
    jobs.c.priority,
    jobs.c.created_at,
    jobs.c.id,
    sqlite_where=IS_QUEUED,
    postgresql_where=IS_QUEUED,
)
Index(
    "ix_jobs_claim_device",
    jobs.c.needs_gpu,
    jobs.c.device,
    jobs.c.priority,
    jobs.c.created_at,
    jobs.c.id,
    sqlite_where=IS_QUEUED,
    postgresql_where=IS_QUEUED,
)
Index("ix_jobs_announced", jobs.c.announced_at, sqlite_where=IS_QUEUED, postgresql_where=IS_QUEUED)
Index("ix_jobs_lease", jobs.c.state, jobs.c.lease_expires_at)
Index("ix_jobs_request_key", jobs.c.request_key, jobs.c.finished_at)
Index(
    "uq_jobs_unfinished",
    jobs.c.request_key,
    unique=True,
    sqlite_where=IS_COALESCIBLE,
    postgresql_where=IS_COALESCIBLE,
)

job_events = Table(
    "job_events",
    metadata,
    Column("job_id", ForeignKey(jobs.c.id), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    text_column("kind"),
    Column("at", UtcDateTime, nullable=False),
    Column("data", JSON, nullable=False),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("client", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("body_hash", String(64), nullable=False),
    Column("job_id", ForeignKey(jobs.c.id), nullable=False),
    Column("created_at", UtcDateTime, nullable=False, index=True),
)

watches = Table(
    "watches",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("watch", JSON, nullable=False),  # as a table of nightly.toml
    Column("watch_key", String(64), nullable=False),
    text_column("client"),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("watch_key"),
)

nightly_runs = Table(
    "nightly_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    text_column("schedule"),
    Column("date", Date, nullable=False),
    Column("summary", JSON(none_as_null=True)),  # None: it was not finished
    Column("started_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    UniqueConstraint("schedule", "date"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Integer, primary_key=True),
    text_column("name"),
    Column("key_hash", String(64), nullable=False),  # sha256; the key itself is never stored
    Column("scopes", JSON, nullable=False),  # of read, submit, admin
    Column("created_at", UtcDateTime, nullable=False),
    Column("last_used_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    UniqueConstraint("name"),
    UniqueConstraint("key_hash"),
)
