"""Alembic runs this: for `Database.open`, on its connection, and for who calls `alembic`."""

import os
from typing import Literal

from alembic import context
from sqlalchemy import Connection

import tuner.store.tables  # noqa: F401  # adds its tables to the metadata
from tuner.store.connect import connect, database_url, writer
from tuner.store.tables import VERSION_TABLE, UtcDateTime, metadata


def _render(kind: str, item: object, context: object) -> str | Literal[False]:
    # A script must mean the same for ever: it names no type of ours.
    return "sa.DateTime(timezone=True)" if isinstance(item, UtcDateTime) else False


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        render_as_batch=True,  # SQLite alters a table only by copying it
        render_item=_render,
        # Another program's tables may stand in the same PostgreSQL database.
        include_name=lambda name, kind, _parents: kind != "table" or name in metadata.tables,
    )
    with context.begin_transaction():
        context.run_migrations()


if "connection" in context.config.attributes:
    _run(context.config.attributes["connection"])
else:
    with writer(connect(database_url(os.environ))).begin() as connection:
        _run(connection)
