"""Outages of the store and of the broker, which are expected: a line each for begin and end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("tuner.outages")


class Outage:
    """Logs once that something is away, and once that it is back. Threads may share it."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None

    def begin(self, error: BaseException, job_id: str | None = None) -> None:
        """It did not answer. Only an outage's first error is logged."""
        with self._lock:
            if self._since is not None:
                return
            self._since = self._clock()
        extra = {} if job_id is None else {"job_id": job_id}
        log.warning("%s does not answer: %s", self._what, error, extra=extra)

    def end(self) -> None:
        """It answered."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            log.info("%s answers again after %.0f s", self._what, self._clock() - since)
