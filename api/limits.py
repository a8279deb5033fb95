"""Limit each caller: rates, and requests that run at once.

Rates are counted in Redis for all API processes, or in this process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from threading import Lock
from typing import Any

import anyio
from limits import RateLimitItem
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import RETRY_S, problem_response
from api.keys import counted
from api.pages.browser import HEALTH_PATHS, needs_no_key
from tuner.errors import UnusableStore
from workers.settings import Settings

log = logging.getLogger("tuner.api.rates")

ANSWER_S = 0.5  # a Redis that takes longer counts as unreachable
AWAY_S = 10.0  # an unreachable Redis is left alone for so long, as each try delays a request
_PREFIX = "tuner-rates"


class Limiter:
    """Counts the requests of each caller. Safe to share between threads.

    While Redis is unreachable, each process applies the rates to the requests that it sees.
    """

    def __init__(self, settings: Settings) -> None:
        self._own = MovingWindowRateLimiter(MemoryStorage())
        self._shared = MovingWindowRateLimiter(_redis(settings)) if settings.broker_url else None
        self._away_until = 0.0

    @property
    def waits(self) -> bool:
        """Say whether `check` asks Redis, which takes time."""
        return self._shared is not None and time.monotonic() >= self._away_until

    def check(self, rates: tuple[RateLimitItem, ...], what: str, who: str) -> None:
        """Count a request. Raises HTTPException 429, with the seconds to wait, above a rate."""
        for rate in rates:
            if wait_s := self._wait_s(rate, what, who):
                raise HTTPException(429, f"more than {rate}", {"Retry-After": str(wait_s)})

    def _wait_s(self, rate: RateLimitItem, what: str, who: str) -> int:
        if self._shared and self.waits:
            try:
                return _hit(self._shared, rate, what, who)
            except StorageError as error:
                self._away_until = time.monotonic() + AWAY_S
                log.warning("rates are counted in this process alone: %s", error.storage_error)
        return _hit(self._own, rate, what, who)


def _hit(windows: MovingWindowRateLimiter, rate: RateLimitItem, what: str, who: str) -> int:
    """Count a request. Return 0, or the seconds until it is allowed for certain."""
    if windows.hit(rate, what, who):
        return 0
    reset_at, _ = windows.get_window_stats(rate, what, who)
    return max(1, round(reset_at - time.time()))


def _redis(settings: Settings) -> RedisStorage:
    from redis.backoff import NoBackoff  # noqa: PLC0415 (without a broker, no Redis is needed)
    from redis.retry import Retry  # noqa: PLC0415

    assert settings.broker_url
    options: dict[str, Any] = {
        "socket_connect_timeout": ANSWER_S,
        "socket_timeout": ANSWER_S,
        "retry": Retry(NoBackoff(), 0),
    }
    if settings.broker_ca and settings.broker_url.startswith("rediss:"):
        options["ssl_ca_certs"] = str(settings.broker_ca)
    return RedisStorage(settings.broker_url, key_prefix=_PREFIX, wrap_exceptions=True, **options)


WAIT_S = 5.0
# More reading requests at once are not faster, because Python's lock lets one thread run at a time.
# It picks threads at random: with eight at once, some answers took ten times as long as others.
READS = 3  # one computes while the others wait for the database
OPEN = 1  # requests that need no key: however many there are, the others wait for at most this one
OPEN_GAP_S = 0.01  # between such requests of an address; a proxy's users share its address
_ADDRESSES = 1000  # of which it is known when they may go on, before those that may are forgotten
EXPORTS = 2  # they take long, and must not make the other reading requests wait
ADMISSIONS = 4  # requests with a body, until it is read
WRITES = 8  # and after that
_EXPORTS = "/v1/exports/"


class Turns:
    """Bounds the number of requests that run at once."""

    def __init__(self, at_once: int) -> None:
        self._free = anyio.Semaphore(at_once)

    @asynccontextmanager
    async def take(self, scope: Scope, receive: Receive, send: Send) -> AsyncIterator[Send | None]:
        """Wait for a turn, which ends when the answer begins: a slow client keeps none.

        Yields the `send` to answer with; None if the request waited in vain and was answered.
        """
        if not await self._is_free():
            later, text = {"Retry-After": str(RETRY_S)}, "the server is busy: try again"
            answer = problem_response(scope["state"]["request_id"], 503, text, headers=later)
            await answer(scope, receive, send)
            yield None
            return
        with ExitStack() as turn:
            turn.callback(self._free.release)
            scope["state"]["end_turn"] = turn.close

            async def send_out_of_turn(message: Message) -> None:
                turn.close()
                await send(message)

            yield send_out_of_turn

    async def _is_free(self) -> bool:
        try:
            self._free.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.move_on_after(WAIT_S) as wait:
                await self._free.acquire()
            return not wait.cancelled_caught
        return True


class Question:
    """A question to the store that its threads ask in turn, and whose failure they share.

    Each would otherwise wait for a store that does not answer, one after the other.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = Lock()
        self._clock, self._failed_at = clock, 0.0
        self._failure: UnusableStore | None = None

    @contextmanager
    def turn(self, since: float | None = None) -> Iterator[None]:
        """Wait for the turn. Raises the UnusableStore that another thread met meanwhile, or since
        then, if the caller waited before, in seconds of the clock.
        """
        since = self._clock() if since is None else since
        with self.lock:
            if self._failure and since <= self._failed_at:
                raise self._failure.with_traceback(None)
            try:
                yield
            except UnusableStore as error:
                self._failure, self._failed_at = error, self._clock()
                raise


class Pace:
    """Spaces out the requests of each address, which wait as long as it takes."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._next: dict[str, float] = {}  # when an address may go on, in seconds of monotonic()

    async def wait(self, address: str) -> None:
        """Wait until the address may go on."""
        address, now = counted(address), time.monotonic()
        if len(self._next) > _ADDRESSES:
            self._next = {one: at for one, at in self._next.items() if at > now}
        at = max(now, self._next.get(address, 0.0))
        self._next[address] = at + self._gap_s
        if at > now:
            await anyio.sleep(at - now)


class TakeTurns:
    """ASGI middleware: lets requests take turns. Health checks never wait."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._pace = Pace(OPEN_GAP_S)
        self._reads, self._exports = Turns(READS), Turns(EXPORTS)
        self._admissions, self._open = Turns(ADMISSIONS), Turns(OPEN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        if needs_no_key(scope["path"]):
            await self._pace.wait(client[0] if (client := scope.get("client")) else "")
        async with self._turns(scope).take(scope, receive, send) as sender:
            if sender:
                await self._app(scope, receive, sender)

    def _turns(self, scope: Scope) -> Turns:
        if scope["method"] != "GET":
            return self._admissions
        if needs_no_key(scope["path"]):
            return self._open
        return self._exports if scope["path"].startswith(_EXPORTS) else self._reads
