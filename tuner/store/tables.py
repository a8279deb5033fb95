"""The store's tables. A change here needs a migration; the tests compare the two."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
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
    """The columns of a `Point`. Only attention has tokens; elsewhere they are 0."""
    return (
        text_column("part"),
        Column("batch_size", Integer, nullable=False),
        Column("new_tokens", Integer, nullable=False, server_default="0"),
        Column("cached_tokens", Integer, nullable=False, server_default="0"),
    )


POINT_COLUMNS = ("part", "batch_size", "new_tokens", "cached_tokens")


def _compiled() -> tuple[Column[Any], ...]:
    """The columns of a `Compiled`, without its status."""
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
# The key has the status, so that a predicted winner cannot replace a measured one.
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
    # What a gain is over, so that queries need no JSON: `gains.reference` of the entry.
    Column("over", Text, nullable=False, server_default=""),
    Column("over_us", Double),
    text_column("reason"),
    Column("published_at", UtcDateTime, nullable=False),
    UniqueConstraint(*WINNER_KEY, name="uq_winners_place"),
    Index(None, "environment_id", "published_at"),  # which environment is the newest
)

served_proofs = Table(
    "served_proofs",
    metadata,
    Column("id", Integer, primary_key=True),
    text_column("model"),
    text_column("device"),
    text_column("engine"),
    text_column("engine_version"),
    text_column("files"),
    Column("proven", Boolean, nullable=False),
    Column("report", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index(None, "device", "engine", "engine_version"),
)
