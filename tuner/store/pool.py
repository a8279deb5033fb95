"""The connections of an engine: kept, checked where they may be dead, and never of another file."""

from __future__ import annotations

import os
import select
import stat
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError

from tuner.errors import StoreReplaced

IDLE_S = 5.0  # a connection that was unused for longer is asked whether it still answers


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


def check_before_use(engine: Engine) -> None:
    """Replace a server's connections that ended while they were in the pool.

    A question before each use would cost a round trip. A server that stops closes its connections,
    which shows here at once, without one. A connection that a firewall dropped shows nothing, so
    one that was idle is asked.
    """

    @event.listens_for(engine, "checkin")
    def _on_checkin(connection: Any, record: Any) -> None:  # noqa: ANN401 (SQLAlchemy's signature)
        record.info["since"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _on_checkout(connection: Any, record: Any, proxy: object) -> None:  # noqa: ANN401
        since = record.info.get("since")
        if since is None:  # a new connection
            return
        try:
            if time.monotonic() - since > IDLE_S or _has_something_to_read(connection):
                engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError(str(error)) from None


def _has_something_to_read(connection: Any) -> bool:  # noqa: ANN401
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def refuse_another_file(engine: Engine, path: str) -> None:
    """Raise StoreReplaced once the file at `path` is not the one that was opened first.

    What is written to a deleted file is lost when the process ends, and SQLite would make a new
    file for a new connection.
    """
    first = [found for found in [_identity(path)] if found]

    @event.listens_for(engine, "checkin")
    def _remember(*_: object) -> None:
        if not first and (found := _identity(path)):
            first.append(found)

    @event.listens_for(engine, "do_connect")
    @event.listens_for(engine, "checkout")
    def _check(*_: object) -> None:
        if first and _identity(path) != first[0]:
            raise StoreReplaced(f"the store's file {path} was deleted or replaced: restart this")


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (for each use of a connection: the quick way)
    except OSError:
        return None
    # While a connection of the pool has a deleted file open, no other gets its number.
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)
