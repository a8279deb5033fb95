"""Rate limits for each caller, counted in Redis for all API processes, or in this process."""

from __future__ import annotations

import logging
import time
from typing import Any

from limits import RateLimitItem
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.exceptions import HTTPException

from workers.settings import Settings

log = logging.getLogger("tuner.api.rates")

ANSWER_S = 0.5  # a Redis that takes longer counts as unreachable
AWAY_S = 10.0  # an unreachable Redis is left alone for so long, as each try delays a request
_PREFIX = "tuner-rates"


class Limiter:
    """Counts what each caller does. Safe to share between threads.

    While Redis is unreachable, each process applies the rates to the requests that it sees.
    """

    def __init__(self, settings: Settings) -> None:
        self._own = MovingWindowRateLimiter(MemoryStorage())
        self._shared = MovingWindowRateLimiter(_redis(settings)) if settings.broker_url else None
        self._away_until = 0.0

    @property
    def waits(self) -> bool:
        """Whether `check` asks Redis, which takes time."""
        return self._shared is not None and time.monotonic() >= self._away_until

    def check(self, rates: tuple[RateLimitItem, ...], what: str, who: str) -> None:
        """Count one more. Raises HTTPException 429, with the seconds to wait, above a rate."""
        for rate in rates:
            if wait := self._wait(rate, what, who):
                raise HTTPException(429, f"more than {rate}", {"Retry-After": str(round(wait))})

    def _wait(self, rate: RateLimitItem, what: str, who: str) -> float:
        if self._shared and self.waits:
            try:
                return _seconds_left(self._shared, rate, what, who)
            except StorageError as error:
                self._away_until = time.monotonic() + AWAY_S
                log.warning("rates are counted in this process alone: %s", error.storage_error)
        return _seconds_left(self._own, rate, what, who)


def _seconds_left(
    windows: MovingWindowRateLimiter, rate: RateLimitItem, what: str, who: str
) -> float:
    """Count one more: 0 where that is allowed, else the seconds to wait, at least 1."""
    if windows.hit(rate, what, who):
        return 0.0
    return max(1.0, windows.get_window_stats(rate, what, who).reset_time - time.time())


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
