"""Brings a database to this version's schema, or refuses it."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, column, func, select, table, update

from tuner.errors import UnusableStore
from tuner.store.tables import VERSION_TABLE

HEAD = "0006"
_VERSION = table(VERSION_TABLE, column("version_num"))

# `migrations` is beside the package, in a checkout as in site-packages. It is found by its path:
# by name, another package on sys.path could be found.
_MIGRATIONS = Path(__file__).parents[2] / "migrations"
_LOCK = 0x74756E6572  # "tuner", as PostgreSQL's advisory locks are numbers


def bring_to_head(engine: Engine) -> None:
    """Migrate an empty or older database in one transaction, and prove that it can be written.

    Raises UnusableStore for a newer version's schema, and leaves it as it is.
    """
    with engine.begin() as connection:
        if _heads(connection) == (HEAD,):
            _prove_writable(connection)
            return
        # On SQLite, the transaction has the write lock already.
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        _upgrade(connection)


def check_head(connection: Connection) -> None:
    """Raises UnusableStore where the schema is no longer this version's."""
    found = connection.execute(select(_VERSION.c.version_num)).scalars().all()
    if found != [HEAD]:
        raise UnusableStore(f"the store's schema is {', '.join(found) or 'gone'}, not {HEAD}")


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _heads(connection: Connection) -> tuple[str, ...]:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_heads()


def _upgrade(connection: Connection) -> None:
    config = alembic_config()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    newer = sorted(set(_heads(connection)) - known)
    if newer:
        raise UnusableStore(
            f"the store's schema {newer[0]} is newer than this version's {HEAD}: upgrade the tuner"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _prove_writable(connection: Connection) -> None:
    # SQLite opens a read-only file without an error, and even BEGIN IMMEDIATE succeeds on it.
    connection.execute(update(_VERSION).values(version_num=_VERSION.c.version_num))
    connection.rollback()
