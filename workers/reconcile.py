"""Repairs what killed processes leave behind: expired leases and lost messages.

It also deletes idempotency keys that are a week old.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Protocol

from tuner.jobs.job import Job
from tuner.store import JobStore, Leases
from workers.metrics import EXPIRED_LEASES

log = logging.getLogger("tuner.reconcile")

EVERY_S = 5.0
ANNOUNCE_AGAIN = timedelta(seconds=30)
FORGET_EVERY_S = 3600.0


class Announces(Protocol):
    """Something that can wake workers."""

    def announce(self, job: Job) -> None: ...


class Reconciler:
    """Repairs the queue. Any number of processes may do this at once."""

    def __init__(self, leases: Leases, announcer: Announces) -> None:
        self._leases = leases
        self._jobs = JobStore.sharing(leases)
        self._announcer = announcer
        self._forget_at = 0.0

    def round(self) -> None:
        """Do one round of repairs. Raises UnusableStore."""
        for job in self._leases.expire():
            EXPIRED_LEASES.inc()
            log.warning("job %s: %s: now %s", job.id, job.error, job.state.value)
            if not job.state.finished:
                self._announcer.announce(job)
        if forgotten := self._leases.unannounced(ANNOUNCE_AGAIN):
            self._announcer.announce(forgotten)
        if time.monotonic() >= self._forget_at:
            # Here, because every service has workers, and not all have a nightly round.
            self._jobs.forget_idempotency_keys()
            self._forget_at = time.monotonic() + FORGET_EVERY_S
