"""An open database: its transactions, and statements that SQLAlchemy has no portable form for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TypeVar

from sqlalchemy import Connection, Engine, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite

from tuner.store.connect import connect, reader, use_wal, write_lock_of, writer
from tuner.store.failures import translated
from tuner.store.locks import try_file_lock, try_transaction_lock
from tuner.store.pool import PATIENT, PoolLimits
from tuner.store.schema import bring_to_head, check_head

D = TypeVar("D", bound="Database")
Clock = Callable[[], datetime]


class Database:
    """An open database. Threads may share it; forked processes may not, each opens its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader = reader(engine)
        self._writer = writer(engine)

    @classmethod
    def open(cls: type[D], url: str, limits: PoolLimits = PATIENT) -> D:
        """Open the store at `url` (see `database_url`), made or migrated as needed.

        A migration takes its time, whatever the limits. Raises UnusableStore, with nothing written,
        for a URL that names no SQLite or PostgreSQL database, one that cannot be reached or
        written, or one with a newer version's schema.
        """
        engine = connect(url, limits)
        with translated(engine.url):
            bring_to_head(writer(engine))
            use_wal(engine)
        return cls(engine)

    @classmethod
    def sharing(cls: type[D], other: Database) -> D:
        """The same database through the same connections; either `close` closes both."""
        return cls(other._engine)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self: D) -> D:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def check_schema(self) -> None:
        """Raises NewerSchema once a newer version has migrated the store, WrongSchema for an older.

        A program that goes on would write what the newer version does not expect.
        """
        with self._read() as connection:
            check_head(connection)

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        """A connection that sees what is committed: with SQLite one state, else one a statement."""
        with translated(self._engine.url), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with (
            write_lock_of(self._writer),
            translated(self._engine.url),
            self._writer.begin() as connection,
        ):
            yield connection

    @contextmanager
    def _write_locked(self, name: str, refusal: Exception) -> Iterator[Connection]:
        """`_write` with a named lock. Raises `refusal` at once if another transaction has it."""
        with try_file_lock(self._engine, name) as mine:
            if not mine:
                raise refusal
            with self._write() as connection:
                if not try_transaction_lock(connection, name):
                    raise refusal
                yield connection


def insert_into(connection: Connection, target: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that takes ON CONFLICT, and whose result counts the rows that it added."""
    postgres = connection.dialect.name == "postgresql"
    insert = postgresql.insert(target) if postgres else sqlite.insert(target)
    return insert.execution_options(preserve_rowcount=True)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def time_of(connection: Connection, clock: Clock | None) -> datetime:
    """The time of `clock`; without one, the time of the database's host, for all workers alike.

    With its own time, a host whose clock is a minute ahead would find every lease expired.
    """
    if clock is not None:
        return clock()
    if connection.dialect.name == "postgresql":
        now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return now.astimezone(timezone.utc)
    return utc_now()
