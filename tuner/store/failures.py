"""What a database's errors mean: which pass by themselves, and which need an operator."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from tuner.errors import StoreFull, StoreReadOnly, StoreUnreachable, UnusableStore

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
    """Turn a database's errors into UnusableStore, with one line that shows no password.

    Raises StoreUnreachable for what may pass by itself, StoreFull for a full disk, and
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
    """Whether a SQLite file's disk has no room for another page."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return False
    try:
        return shutil.disk_usage(Path(url.database).parent).free < _ROOM_BYTES
    except OSError:
        return False


def shown(url: URL) -> str:
    """The store's name in messages, without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or "in memory"
    return url.set(drivername="postgresql").render_as_string(hide_password=True)


def kind_of(error: Exception) -> type[UnusableStore]:
    """The class of a failure of SQLAlchemy's, or of the operating system."""
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
