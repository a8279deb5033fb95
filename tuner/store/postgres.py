"""Connect to PostgreSQL: how long a session waits, and what shows that its server is gone."""

from __future__ import annotations

import select
import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import URL, Engine, event
from sqlalchemy.exc import InvalidatePoolError

IDLE_S = 5.0  # a connection that was unused for longer is asked whether it still answers
PING_S = 2.0  # and is replaced if it has not answered by then
GRACE_S = 2.0  # for the answer that PostgreSQL itself gave a statement up
# A process that is stopped inside a transaction must not keep a job's row locked. No transaction
# here waits for anything but the database, so PostgreSQL may end a transaction that is idle for so
# long.
_STALLED_MS = 30_000
T = TypeVar("T")


class SilentServer(psycopg.OperationalError):
    """The server has not answered for too long."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up a server that is silent for `silence_s` seconds; None: never.

    A frozen server keeps none of its own limits, and the kernel still acknowledges what it is sent.
    """

    silence_s: float | None = None

    def wait(self, gen: PQGen[T], *args: Any, **named: Any) -> T:  # noqa: ANN401
        """Wait as psycopg does. Raises SilentServer, and closes the connection."""
        try:
            return super().wait(self._unless_silent(gen), *args, **named)
        except SilentServer:
            self.close()  # its server may still answer to this statement
            raise

    def _unless_silent(self, steps: PQGen[T]) -> PQGen[T]:
        ready, heard = None, time.monotonic()
        while True:
            try:
                wanted = steps.send(ready)  # type: ignore[arg-type]  # None starts it
            except StopIteration as end:
                found: T = end.value
                return found
            ready = yield wanted  # 0 each tenth of a second in which nothing came
            if ready:
                heard = time.monotonic()
            elif self.silence_s and time.monotonic() - heard > self.silence_s:
                raise SilentServer(f"the server did not answer within {self.silence_s:g} s")


def bound(engine: Engine, statement_s: float, connect_s: float) -> None:
    """Give up servers that are silent, and replace connections that ended while they were unused.

    A question before each use would cost a round trip. A server that stops closes its connections,
    which shows here at once, without a round trip. A connection that a firewall dropped shows
    nothing, so a connection that was idle is asked.
    """
    # A limit of the URL's own comes first, and may be longer.
    own = "statement_timeout" in " ".join(engine.url.normalized_query.get("options", ()))
    silence_s = statement_s + GRACE_S if statement_s and not own else None

    @event.listens_for(engine, "do_connect")
    def _on_connect(
        dialect: object, record: object, args: tuple[str, ...], named: dict[str, Any]
    ) -> BoundedConnection:
        connection = BoundedConnection.connect(*args, **named)
        connection.silence_s = connect_s
        return connection

    @event.listens_for(engine, "checkin")
    def _on_checkin(connection: Any, record: Any) -> None:  # noqa: ANN401 (SQLAlchemy's signature)
        record.info["since"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _on_checkout(connection: Any, record: Any, proxy: object) -> None:  # noqa: ANN401
        since = record.info.get("since")
        try:
            # None: a new connection
            if since is not None and (_is_old(since) or _has_something_to_read(connection)):
                connection.silence_s = PING_S
                engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError(str(error)) from None
        connection.silence_s = silence_s


def _is_old(since: float) -> bool:
    return time.monotonic() - since > IDLE_S


def _has_something_to_read(connection: Any) -> bool:  # noqa: ANN401
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def connect_options(
    url: URL, statement_s: float, lock_s: float, connect_s: int
) -> dict[str, object]:
    """Return libpq's parameters. The URL's own parameters come first."""
    session = {
        "idle_in_transaction_session_timeout": _STALLED_MS,
        "statement_timeout": round(statement_s * 1000),
        "lock_timeout": round(lock_s * 1000),
        # The methods are written for this level; a server may have another default.
        "default_transaction_isolation": "read\\ committed",
    }
    given = url.normalized_query.get("options", ())
    settings = [f"-c {name}={value}" for name, value in session.items()]
    options: dict[str, object] = {
        "connect_timeout": connect_s,
        # An unreachable server is given up after half a minute; the kernel would take 15 minutes.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
    options = {name: value for name, value in options.items() if name not in url.query}
    # PostgreSQL takes the later of two values for a setting: the URL's.
    return {**options, "options": " ".join([*settings, *given])}
