"""Brings a database to this version's schema, or refuses it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, column, func, inspect, select, table, text, update
from sqlalchemy.exc import DBAPIError

from tuner.errors import NewerSchema, UnusableStore, WrongSchema
from tuner.store.tables import VERSION_TABLE

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0017"
_VERSION = table(VERSION_TABLE, column("version_num"))

# `migrations` is beside the package, in a checkout as in site-packages. It is found by its path:
# by name, another package on sys.path could be found.
_MIGRATIONS = Path(__file__).parents[2] / "migrations"
_LOCK = 0x74756E6572  # "tuner", as PostgreSQL's advisory locks are numbers


def bring_to_head(engine: Engine) -> None:
    """Migrate an empty or older database in one transaction, and prove that it can be written.

    Raises NewerSchema for a newer version's schema, and leaves it as it is.
    """
    with engine.begin() as connection:
        if _heads(connection) == (HEAD,):
            prove_writable(connection)
            return
        # On SQLite, the transaction has the write lock already.
        if connection.dialect.name == "postgresql":
            # A migration must not be cut off, whatever limits the session has.
            for limit in ("statement_timeout", "lock_timeout"):
                connection.execute(text(f"SET LOCAL {limit} = 0"))
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        _upgrade(connection)


def check_head(connection: Connection) -> None:
    """Raises NewerSchema where a newer version has migrated the store, WrongSchema for others."""
    found = connection.execute(select(_VERSION.c.version_num)).scalars().all()
    if found != [HEAD]:
        raise _wrong(found)


def alembic_config() -> Config:
    # A store at this version's schema needs none of it, and it is a quarter of a worker's imports.
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _heads(connection: Connection) -> tuple[str, ...]:
    if not inspect(connection).has_table(VERSION_TABLE):
        return ()
    return tuple(connection.execute(select(_VERSION.c.version_num)).scalars())


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415

    config, found = alembic_config(), _heads(connection)
    if found and found != (HEAD,):
        raise _wrong(found)
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except DBAPIError as error:
        # PostgreSQL's codes and SQLite's words for a table or a column that is there already.
        code, reason = getattr(error.orig, "sqlstate", None), str(error.orig).partition("\n")[0]
        if code in ("42P07", "42701") or "already exists" in reason or "duplicate column" in reason:
            raise _set_back(found, reason) from error
        raise


def _wrong(found: Sequence[str]) -> WrongSchema:
    if not found:
        return WrongSchema("the store's schema is gone: restore a backup, or restart this program")
    version = max(found)
    if version > HEAD:
        return NewerSchema(
            f"the store was upgraded to schema {version} and this program knows {HEAD}: "
            "upgrade and restart it"
        )
    return WrongSchema(
        f"the store has schema {version} of an early development version, and this program needs "
        f"{HEAD}: export with that version what is worth keeping, and name a new store"
    )


def _set_back(found: Sequence[str], reason: str) -> UnusableStore:
    said = f"says that its schema is {found[0]}" if found else "does not say which schema it has"
    return UnusableStore(
        f"the store {said}, but it holds more ({reason}): restore a backup, or, if another "
        "program's tables are in it, use a database of its own"
    )


def prove_writable(connection: Connection) -> None:
    """Raises a database error where the store takes no writes. Rolls the transaction back."""
    # SQLite opens a read-only file without an error, and even BEGIN IMMEDIATE succeeds on it.
    connection.execute(update(_VERSION).values(version_num=_VERSION.c.version_num))
    connection.rollback()
