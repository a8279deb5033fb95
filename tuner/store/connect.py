"""Open an engine for a database URL, with equal transactions, errors and pool everywhere."""

from __future__ import annotations

import contextlib
import errno
import math
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from tuner.errors import StoreFull, StoreReadOnly, StoreUnreachable, UnusableStore
from tuner.files import read_value
from tuner.store.sqlite_file import make_private, refuse_another_file

# Python 3.10 does not give SQLite's codes.
_SQLITE_ERRORS: dict[str, type[UnusableStore]] = {
    "is locked": StoreUnreachable,
    "disk is full": StoreFull,
    "readonly database": StoreReadOnly,
}
_POSTGRES_ERRORS: dict[str, type[UnusableStore]] = {
    "53100": StoreFull,
    "25006": StoreReadOnly,  # also a standby, after a failover
    "25P03": StoreUnreachable,  # the transaction was idle for too long
    "55P03": StoreUnreachable,  # lock_timeout
}
_SYSTEM_ERRORS: dict[int, type[UnusableStore]] = {
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreFull,
    errno.EROFS: StoreReadOnly,
    errno.EACCES: StoreReadOnly,
}
_STEPS: dict[type[UnusableStore], str] = {
    StoreFull: ": its disk is full: make room there",
    StoreReadOnly: ": it must be writable, also for those who only read: ask its owner for the "
    "right, or set TUNER_DATABASE_URL to a copy of your own",
}
_ROOM_BYTES = 1 << 16
# Classes of codes: a lost connection, a conflict of transactions, no memory or connection left, a
# timeout or a server that stops, and a failure of the server's system.
_PASSING = ("08", "40", "53", "57", "58")


@contextlib.contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn a database's errors into UnusableStore, with a line that shows no password.

    Raises StoreUnreachable for failures that may pass by themselves, StoreFull for a full disk, and
    StoreReadOnly for a store that takes no writes.
    """
    try:
        yield
    except (ArgumentError, DBAPIError, NoConnectionLeft) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = str(cause).strip().partition("\n")[0]
        kind = kind_of(error)
        if kind is UnusableStore and _is_full(url):  # SQLite may call it "disk I/O error"
            kind = StoreFull
        step = _STEPS.get(kind, "")
        raise kind(f"cannot use the store {shown(url)}: {reason}{step}") from error


def _is_full(url: URL) -> bool:
    """Say whether a SQLite file's disk has no room for another page."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return False
    try:
        return shutil.disk_usage(Path(url.database).parent).free < _ROOM_BYTES
    except OSError:
        return False


def shown(url: URL) -> str:
    """Return the store's name in messages, without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or "in memory"
    plain = url.set(drivername="postgresql").difference_update_query(["password", "sslpassword"])
    return plain.render_as_string(hide_password=True)


def kind_of(error: Exception) -> type[UnusableStore]:
    """Return the class of a failure of SQLAlchemy's, or of the operating system."""
    if isinstance(error, NoConnectionLeft):
        return StoreUnreachable
    if isinstance(error, OSError):
        return _SYSTEM_ERRORS.get(error.errno or 0, UnusableStore)
    if not isinstance(error, DBAPIError):
        return UnusableStore
    if isinstance(error.orig, sqlite3.Error):
        said = str(error.orig)
        return next((kind for part, kind in _SQLITE_ERRORS.items() if part in said), UnusableStore)
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _POSTGRES_ERRORS:
        return _POSTGRES_ERRORS[state]
    # Without a code, an operational error comes from libpq: the server was not reached, or is gone.
    lost = error.connection_invalidated or (isinstance(error, OperationalError) and not state)
    return StoreUnreachable if lost or state[:2] in _PASSING else UnusableStore


@dataclass(frozen=True)
class PoolLimits:
    """How long the connections of a process wait, in seconds, and how many it keeps at most.

    By default, statements and locks have all the time they need: a worker has nothing better to do.
    """

    connection_s: float = 30  # for a connection of the pool
    statement_s: float = 0  # 0: as long as it takes; PostgreSQL only
    lock_s: float = 0  # 0: as long as it takes on PostgreSQL, SQLITE_LOCK_S on SQLite
    connect_s: int = 10  # for a server's answer to a new connection; libpq takes 2 at least
    connections: int = 16


PATIENT = PoolLimits()


URL_VARIABLE = "TUNER_DATABASE_URL"

_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",  # some hosting services write it so
}
SQLITE_LOCK_S = 30.0  # how long a SQLite writer waits for another


def database_url(environ: Mapping[str, str]) -> str:
    """Return the store's URL: TUNER_DATABASE_URL, the content of the file that
    TUNER_DATABASE_URL_FILE names, or a SQLite file in the user's data folder.

    Raises BadInput if both are set, and for a file that is empty or cannot be read.
    """
    file = platformdirs.user_data_path("tuner", appauthor=False) / "tuner.db"
    return read_value(URL_VARIABLE, environ) or f"sqlite:///{file}"


def connect(text: str, limits: PoolLimits = PATIENT) -> Engine:
    """Return an engine for a URL. It makes a SQLite file's folder, and connects when first used.

    Raises UnusableStore for a URL that is neither SQLite's nor PostgreSQL's, for a folder that
    cannot be made, and if psycopg is missing.
    """
    url = _parse(text)
    # Connections used last are used first: the others then show that they are not needed.
    pool: dict[str, Any] = {"pool_size": limits.connections, "max_overflow": 0}
    pool |= {"pool_use_lifo": True, "pool_timeout": limits.connection_s}
    if url.get_backend_name() != "sqlite":
        return _postgres_engine(url, limits, pool)
    file, lock_s = file_of(url), limits.lock_s or SQLITE_LOCK_S
    _make_folder(url)
    with translated(url):
        engine = create_engine(url, connect_args={"timeout": lock_s}, **(pool if file else {}))
    _take_over_transactions(engine)
    if file:
        refuse_another_file(engine, file)
        make_private(engine, file)  # after it: a deleted file is not made again
    # SQLite's writers sleep and try again, for up to 0.1 s each time, and some wait long. This
    # lock spares the threads of one process that.
    engine.update_execution_options(write_lock=threading.Lock(), lock_s=lock_s)
    return engine


def _postgres_engine(url: URL, limits: PoolLimits, pool: Mapping[str, Any]) -> Engine:
    try:
        from tuner.store import postgres  # noqa: PLC0415  # psycopg is an extra
    except ImportError:
        raise UnusableStore(
            "a PostgreSQL store needs psycopg: pip install 'engine-tuner[postgres]'"
        ) from None
    waits = limits.statement_s, limits.lock_s, limits.connect_s
    with translated(url):
        engine = create_engine(url, connect_args=postgres.connect_options(url, *waits), **pool)
    postgres.bound(engine, limits.statement_s, limits.connect_s)
    return engine


@contextlib.contextmanager
def write_lock_of(writer: Engine) -> Iterator[None]:
    """Take the lock that a writing transaction of this process needs first.

    Raises StoreUnreachable if other threads keep it for too long.
    """
    options = writer.get_execution_options()
    lock: threading.Lock | None = options.get("write_lock")
    if lock is None:
        yield
        return
    if not lock.acquire(timeout=options["lock_s"]):
        raise StoreUnreachable(f"cannot use the store {shown(writer.url)}: it is being written")
    try:
        yield
    finally:
        lock.release()


def reader(engine: Engine) -> Engine:
    """Return the same engine and pool, for reading.

    On PostgreSQL, each statement is a transaction of its own, which saves the round trips of BEGIN
    and ROLLBACK. At the level of READ COMMITTED, several statements in a transaction would see as
    many states of the database.
    """
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def writer(engine: Engine) -> Engine:
    """Return the same engine and pool, with transactions that begin as writing transactions.

    SQLite does not let a reading transaction write while another process writes: it fails at once,
    at any timeout. A transaction that begins with the write lock waits for it instead.
    """
    return engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")


def use_wal(engine: Engine) -> None:
    """Let SQLite's readers work beside a writer. The setting is stored in the file."""
    if engine.dialect.name != "sqlite":
        return
    # SQLite does not wait for locks here. If another process has a lock, the next opening sets it.
    with (
        contextlib.closing(engine.raw_connection()) as connection,
        contextlib.suppress(sqlite3.OperationalError),
    ):
        connection.cursor().execute("PRAGMA journal_mode = WAL")


def place_of(text: str) -> str:
    """Return a database URL as messages show it: a file's path, or the URL without its password.

    Raises UnusableStore for a URL that is neither SQLite's nor PostgreSQL's.
    """
    return shown(_parse(text))


def _parse(text: str) -> URL:
    forms = "use sqlite:///FILE or postgresql://USER@HOST/NAME"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # the text may hold a password: not shown
        raise UnusableStore(f"{URL_VARIABLE} is not a database URL: {forms}") from None
    if url.drivername not in _DRIVERS:
        raise UnusableStore(f"no store is kept in {url.drivername!r}: {forms}")
    return url.set(drivername=_DRIVERS[url.drivername])


def file_of(url: URL) -> str | None:
    """Return the path of a SQLite database; None for a database in memory and for PostgreSQL."""
    plain = url.database not in (None, "", ":memory:") and "uri" not in url.query
    return url.database if plain and url.get_backend_name() == "sqlite" else None


def _make_folder(url: URL) -> None:
    if not url.database or "uri" in url.query:
        return
    folder = Path(url.database).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UnusableStore(f"cannot make the store's folder {folder}: {error.strerror}") from error


def _take_over_transactions(engine: Engine) -> None:
    # By default, Python's driver begins no transaction for SELECT or CREATE TABLE.
    @event.listens_for(engine, "connect")
    def _on_connect(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None
        try:
            connection.execute("SELECT ln(1)")
        except sqlite3.OperationalError:  # SQLite was built without its mathematical functions
            connection.create_function("ln", 1, math.log, deterministic=True)
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))
