"""From a database URL to an engine whose transactions behave alike on both databases."""

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
    "postgres": "postgresql+psycopg",  # some hosting services write it so
}
_LOCK_TIMEOUT_S = 30  # how long a SQLite writer waits for another
_CONNECT_TIMEOUT_S = 10
# A process that is stopped inside a transaction must not keep a job's row locked. No transaction
# here waits for anything but the database, so PostgreSQL may end one that is idle for so long.
_STALLED_MS = 30_000


def database_url(environ: Mapping[str, str]) -> str:
    """The store's URL: TUNER_DATABASE_URL, or a SQLite file in the user's data folder."""
    file = platformdirs.user_data_path("tuner", appauthor=False) / "tuner.db"
    return environ.get(URL_VARIABLE) or f"sqlite:///{file}"


def connect(text: str) -> Engine:
    """An engine for a URL. It makes a SQLite file's folder, and connects when first used.

    Raises UnusableStore for a URL that is neither SQLite's nor PostgreSQL's, for a folder that
    cannot be made, and where psycopg is missing.
    """
    url = _parse(text)
    if url.get_backend_name() == "sqlite":
        _make_folder(url)
        options: dict[str, Any] = {"connect_args": {"timeout": _LOCK_TIMEOUT_S}}
    else:
        # The methods are written for this level; a server may have another default.
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
        # SQLite's writers sleep and try again, for up to 0.1 s each time, and some wait long. This
        # lock spares the threads of one process that.
        engine.update_execution_options(write_lock=threading.Lock())
    return engine


def write_lock_of(writer: Engine) -> AbstractContextManager[object]:
    """The lock that a writing transaction of this process takes first."""
    lock: AbstractContextManager[object] | None = writer.get_execution_options().get("write_lock")
    return lock or contextlib.nullcontext()


def writer(engine: Engine) -> Engine:
    """The same engine and pool, with transactions that begin as writing ones.

    SQLite does not let a reading transaction write while another process writes: it fails at once,
    whatever the timeout. A transaction that begins with the write lock waits for it instead.
    """
    return engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")


def use_wal(engine: Engine) -> None:
    """Let SQLite's readers work beside a writer. The setting is stored in the file."""
    if engine.dialect.name != "sqlite":
        return
    # SQLite does not wait for locks here. If another process has one, the next opening sets it.
    with (
        contextlib.closing(engine.raw_connection()) as connection,
        contextlib.suppress(sqlite3.OperationalError),
    ):
        connection.cursor().execute("PRAGMA journal_mode = WAL")


@contextlib.contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn a database's errors into UnusableStore, with one line that shows no password."""
    try:
        yield
    except (ArgumentError, DBAPIError, NoConnectionLeft) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = str(cause).strip().partition("\n")[0]
        raise UnusableStore(f"cannot use the store {_shown(url)}: {reason}") from error


def place_of(text: str) -> str:
    """A database URL as messages show it: a file's path, or the URL without its password.

    Raises UnusableStore for a URL that is neither SQLite's nor PostgreSQL's.
    """
    return _shown(_parse(text))


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
    """libpq's parameters, without the ones that the URL sets."""
    options: dict[str, object] = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "options": f"-c idle_in_transaction_session_timeout={_STALLED_MS}",
        # An unreachable server is given up after half a minute; the kernel would take 15 minutes.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
    return {name: value for name, value in options.items() if name not in url.query}


def _shown(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return url.database or "in memory"
    shown = url.set(drivername="postgresql").difference_update_query(["password", "sslpassword"])
    return shown.render_as_string(hide_password=True)


def _make_folder(url: URL) -> None:
    if not url.database or "uri" in url.query:
        return
    folder = Path(url.database).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnusableStore(f"cannot make the store's folder {folder}: {error.strerror}") from error


def _take_over_transactions(engine: Engine) -> None:
    # By default, Python's driver begins no transaction for SELECT or CREATE TABLE.
    @event.listens_for(engine, "connect")
    def _on_connect(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))
