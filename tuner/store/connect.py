"""From a database URL to an engine whose transactions mean the same on both databases."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import platformdirs
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from tuner.errors import UnusableStore

URL_VARIABLE = "TUNER_DATABASE_URL"

_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",  # as hosting services write it
}
_LOCK_TIMEOUT_S = 30  # how long a SQLite writer waits for another
_CONNECT_TIMEOUT_S = 10
# A process that is stopped in the middle of a transaction must not keep a job's row for itself: no
# transaction here waits for anything but the database. PostgreSQL ends those that do.
_STALLED_MS = 30_000


def database_url(environ: Mapping[str, str]) -> str:
    """The store's URL: TUNER_DATABASE_URL, or a SQLite file in the user's data folder."""
    file = platformdirs.user_data_path("tuner", appauthor=False) / "tuner.db"
    return environ.get(URL_VARIABLE) or f"sqlite:///{file}"


def connect(text: str) -> Engine:
    """An engine for a URL; a SQLite file's folder is made. Connects only when first used.

    Raises UnusableStore for a URL that is not one of SQLite or PostgreSQL.
    """
    url = _parse(text)
    if url.get_backend_name() == "sqlite":
        _make_folder(url)
        options: dict[str, Any] = {"connect_args": {"timeout": _LOCK_TIMEOUT_S}}
    else:
        # What a method does is meant for this level, whatever the server's default is.
        options = {"connect_args": _postgres_options(url), "isolation_level": "READ COMMITTED"}
    try:
        with translated(url):
            engine = create_engine(url, pool_pre_ping=True, **options)
    except ImportError:
        raise UnusableStore(
            "a PostgreSQL store needs psycopg: pip install 'engine-tuner[postgres]'"
        ) from None
    if url.get_backend_name() == "sqlite":
        _take_over_transactions(engine)
        # Between processes SQLite lets writers sleep and try again, for up to 0.1 s each time, and
        # some for long; the threads of one process need not.
        engine.update_execution_options(write_lock=threading.Lock())
    return engine


def write_lock_of(writer: Engine) -> AbstractContextManager[object]:
    """What a writing transaction of this process waits for."""
    turn: AbstractContextManager[object] | None = writer.get_execution_options().get("write_lock")
    return turn or contextlib.nullcontext()


def writer(engine: Engine) -> Engine:
    """The same engine and pool, whose transactions write.

    SQLite refuses at once to turn a reading transaction into a writing one while another
    process writes, whatever the timeout; taking the write lock first waits instead.
    """
    return engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")


def use_wal(engine: Engine) -> None:
    """Let SQLite's readers go on beside a writer; the file remembers it."""
    if engine.dialect.name != "sqlite":
        return
    # SQLite does not wait for locks here: if another process has one, the next opening does it.
    with (
        contextlib.closing(engine.raw_connection()) as connection,
        contextlib.suppress(sqlite3.OperationalError),
    ):
        connection.cursor().execute("PRAGMA journal_mode = WAL")


@contextlib.contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turns a database's errors into UnusableStore: one line, no password."""
    try:
        yield
    except (ArgumentError, DBAPIError, NoConnectionLeft) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = str(cause).strip().partition("\n")[0]
        raise UnusableStore(f"cannot use the store {_shown(url)}: {reason}") from error


def _parse(text: str) -> URL:
    forms = "use sqlite:///FILE or postgresql://USER@HOST/NAME"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # the text may hold a password: not shown
        raise UnusableStore(f"{URL_VARIABLE} is not a database URL: {forms}") from None
    if url.drivername not in _DRIVERS:
        raise UnusableStore(f"no store is kept in {url.drivername!r}: {forms}")
    return url.set(drivername=_DRIVERS[url.drivername])


def _postgres_options(url: URL) -> dict[str, object]:
    """libpq's parameters, but for those that the URL sets itself."""
    options: dict[str, object] = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "options": f"-c idle_in_transaction_session_timeout={_STALLED_MS}",
        # A server that is cut off is given up in half a minute, not in the kernel's quarter hour.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
    return {name: value for name, value in options.items() if name not in url.query}


def _shown(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return url.database or "in memory"
    return url.set(drivername="postgresql").render_as_string(hide_password=True)


def _make_folder(url: URL) -> None:
    if not url.database or "uri" in url.query:
        return
    folder = Path(url.database).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnusableStore(f"cannot make the store's folder {folder}: {error.strerror}") from error


def _take_over_transactions(engine: Engine) -> None:
    # Left alone, Python's driver begins no transaction for SELECT or CREATE TABLE.
    @event.listens_for(engine, "connect")
    def _on_connect(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))
