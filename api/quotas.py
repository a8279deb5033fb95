"""How many jobs a client may have in the queue."""

from __future__ import annotations

import threading
import time

from starlette.exceptions import HTTPException

from tuner.store import JobStore

COUNT_FOR_S = 1.0  # a submission need not count for each job
RETRY_S = 60


class Quotas:
    """Counts each client's queued jobs, at most once a second. Threads may share it."""

    def __init__(self, jobs: JobStore, most: int) -> None:
        self._jobs = jobs
        self._most = most
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[float, int]] = {}  # until when it holds, and the count

    def check(self, client: str, more: int) -> None:
        """Raises HTTPException 429 where `more` jobs would be too many, and UnusableStore."""
        now = time.monotonic()
        with self._lock:
            until, count = self._counts.get(client, (0.0, 0))
        if now >= until:
            until, count = now + COUNT_FOR_S, self._jobs.queued_of(client, self._most)
        if count + more > self._most:
            raise HTTPException(
                429,
                f"{client} has {count} queued jobs, and may have {self._most}: wait or cancel some",
                {"Retry-After": str(RETRY_S)},
            )
        with self._lock:
            self._counts[client] = until, count + more
