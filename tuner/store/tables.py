"""Define the store's tables. A change here needs a migration; the tests compare the two."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)

VERSION_TABLE = "tuner_alembic_version"  # other programs, e.g. Optuna, use Alembic's default

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """A time with the zone UTC on both databases. SQLite alone would store no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return aware.astimezone(timezone.utc)


def text_column(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _point() -> tuple[Column[Any], ...]:
    """Return the columns of a `Point`. Only attention has tokens; elsewhere they are 0."""
    return (
        text_column("part"),
        Column("batch_size", Integer, nullable=False),
        Column("new_tokens", Integer, nullable=False, server_default="0"),
        Column("cached_tokens", Integer, nullable=False, server_default="0"),
    )


POINT_COLUMNS = ("part", "batch_size", "new_tokens", "cached_tokens")


def _compiled() -> tuple[Column[Any], ...]:
    """Return the columns of a `Compiled`, without its status."""
    return (
        Column("shared_bytes", Integer),
        Column("n_regs", Integer),
        Column("n_spills", Integer),
        text_column("compile_detail"),
        Column("cached", Boolean, nullable=False),
    )


environments = Table(
    "environments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    text_column("device"),
    text_column("engine"),
    text_column("engine_version"),
    text_column("triton"),
    text_column("kernel_hash"),
    text_column("torch"),
    text_column("cuda"),
    text_column("driver"),
    Column("backends", Text, nullable=False, server_default=""),
    UniqueConstraint("fingerprint"),
    Index(None, "device", "engine"),
)

problems = Table(
    "problems",
    metadata,
    Column("id", Integer, primary_key=True),
    text_column("spec"),  # canonical: parse_problem reads every field back
    text_column("family"),
    UniqueConstraint("spec"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("problem_id", ForeignKey(problems.c.id), nullable=False),
    Column("environment_id", ForeignKey(environments.c.id), nullable=False),
    text_column("measure"),
    text_column("effort"),
    Column("seed", BigInteger, nullable=False),
    Column("points", JSON, nullable=False),
    text_column("space"),
    text_column("recording"),
    Column("routing", Text, nullable=False, server_default=""),
    text_column("state"),
    text_column("reason"),
    Column("totals", JSON(none_as_null=True)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    UniqueConstraint("fingerprint"),
)

trials = Table(
    "trials",
    metadata,
    # SQLite assigns ids only in a column of the type INTEGER.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("run_id", ForeignKey(runs.c.id), nullable=False),
    *_point(),
    Column("backend", Text, nullable=False, server_default="triton"),
    text_column("config_key"),  # empty for another backend than Triton
    Column("config", JSON, nullable=False),
    text_column("compile_status"),
    *_compiled(),
    text_column("status"),
    Column("median_us", Double),
    Column("min_us", Double),
    Column("samples", Integer, nullable=False),
    text_column("detail"),
    # Named by hand, here and in `winners`: the generated names are too long for PostgreSQL.
    UniqueConstraint("run_id", *POINT_COLUMNS, "config_key", "backend", name="uq_trials_place"),
)

WINNER_KEY = (
    *("environment_id", "problem_id", "status"),
    *("batch_size", "new_tokens", "cached_tokens", "part"),
)
# The key has the status, so that a predicted winner cannot replace a measured winner.
winners = Table(
    "winners",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("problem_id", ForeignKey(problems.c.id), nullable=False),
    Column("environment_id", ForeignKey(environments.c.id), nullable=False),
    text_column("status"),
    *_point(),
    Column("run_id", ForeignKey(runs.c.id), nullable=False),
    Column("config", JSON, nullable=False),
    Column("median_us", Double),  # NULL: an incumbent without a time
    text_column("compile_status"),
    *_compiled(),
    Column("incumbents", JSON, nullable=False),
    Column("without_us", Text, nullable=False, server_default=""),  # an incumbent's name
    Column("server", JSON, nullable=False, server_default="{}"),  # that it is of
    # The baseline of a gain, so that queries need no JSON: `gains.reference` of the entry.
    Column("over", Text, nullable=False, server_default=""),
    Column("over_us", Double),
    text_column("reason"),
    Column("published_at", UtcDateTime, nullable=False),
    UniqueConstraint(*WINNER_KEY, name="uq_winners_place"),
    Index(None, "environment_id", "published_at"),  # which environment is the newest
)


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
    # sglang==0.5.16; sglang if nobody knew a version when the job was posted.
    Column("engine", Text, nullable=False, server_default=""),
    Column("clients", JSON, nullable=False, server_default="[]"),  # who waits for it
    Column("trial_count", Integer, nullable=False, server_default="0"),  # stored in this attempt
    Column("started_at", UtcDateTime),  # the first claim
    Column("gpu_s", Double),  # the cost of the attempt that ended it; None: not known
    Column("gpu_idle_s", Double),
    Column("cpu_s", Double),
)
# With any filter, a keyset page is a walk along one of these indexes.
Index("ix_jobs_page", jobs.c.created_at, jobs.c.id)
Index("ix_jobs_page_state", jobs.c.state, jobs.c.created_at, jobs.c.id)
Index("ix_jobs_page_device", jobs.c.device, jobs.c.created_at, jobs.c.id)
Index("ix_jobs_page_model", jobs.c.model, jobs.c.created_at, jobs.c.id)
Index("ix_jobs_page_client", jobs.c.client, jobs.c.created_at, jobs.c.id)
# For the turns between clients: the first queued job of each client is one entry of these.
Index(
    "ix_jobs_turn",
    jobs.c.needs_gpu,
    jobs.c.client,
    jobs.c.priority,
    jobs.c.created_at,
    jobs.c.id,
    sqlite_where=IS_QUEUED,
    postgresql_where=IS_QUEUED,
)
Index(
    "ix_jobs_turn_device",
    jobs.c.needs_gpu,
    jobs.c.device,
    jobs.c.client,
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
    Column("job_id", ForeignKey(jobs.c.id), nullable=False),  # the first of a batch
    Column("created_at", UtcDateTime, nullable=False, index=True),
    Column("job_ids", JSON(none_as_null=True)),  # of a batch, in its order
)

client_turns = Table(
    "client_turns",
    metadata,
    Column("client", Text, primary_key=True),
    Column("turn", Integer, nullable=False),  # the client with the lowest number is next
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),  # one for each process; jobs.owner
    text_column("name"),  # people's name for it: the same after a restart
    text_column("host"),
    text_column("gpu"),  # its UUID; "" without one
    text_column("device"),  # of that GPU, by the device table
    Column("devices", JSON(none_as_null=True)),  # whose predictions it does; None: all
    Column("engines", JSON, nullable=False),  # sglang==0.5.16, ...
    Column("packages", JSON, nullable=False),  # name -> version: triton, torch, engine-tuner
    text_column("state"),
    text_column("reason"),  # why it was set aside
    Column("drain", Boolean, nullable=False),  # an operator asked it to take no more jobs
    Column("started_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False, index=True),
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
    Column("scopes", JSON, nullable=False),  # of read, submit, admin; and urgent
    Column("created_at", UtcDateTime, nullable=False),
    Column("last_used_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("expires_at", UtcDateTime),
    UniqueConstraint("name"),
    UniqueConstraint("key_hash"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token_hash", String(64), primary_key=True),  # sha256; the cookie is never stored
    Column("key_id", ForeignKey(api_keys.c.id), nullable=False),  # the session has the key's rights
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False, index=True),
)
