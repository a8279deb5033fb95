"""Repairs what broken processes leave behind: jobs without progress, and lost messages.

It also makes jobs urgent that waited for long, and deletes what nobody asks for any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from tuner.errors import UnusableStore
from tuner.jobs.job import Job
from tuner.jobs.limits import AttemptLimits, Exceeded, Held, Stopwatch
from tuner.store import JobStore, Leases
from tuner.store.workers import WorkerStore
from workers.metrics import EXPIRED_LEASES
from workers.queue import Announces

log = logging.getLogger("tuner.reconcile")

EVERY_S = 5.0
ANNOUNCE_AGAIN = timedelta(seconds=30)
AGE_EVERY_S = 60.0
FORGET_EVERY_S = 3600.0
# A worker's own parent ends a child that exceeds a limit. It gets so much time to do that first.
GRACE_S = 15.0


class Overdue:
    """Takes jobs back whose workers are gone or make no progress, on this process's own clock.

    Stored times are not compared with the time of day: a clock that jumps takes no job away.
    """

    def __init__(
        self, leases: Leases, limits: AttemptLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._leases = leases
        self._limits = limits
        self._clock = clock
        self._looked_at = clock()
        self._watches: dict[str, Stopwatch] = {}

    def take_back(self) -> Sequence[Job]:
        """Look at the held jobs, and return the ones that were taken back. Raises UnusableStore."""
        held = self._leases.held()
        now = self._clock()
        elapsed_s, self._looked_at = now - self._looked_at, now
        known = self._watches
        self._watches = {job_id: known.get(job_id, Stopwatch(one)) for job_id, one in held.items()}
        taken = []
        for job_id, one in held.items():
            watch = self._watches[job_id]
            watch.look(one, elapsed_s)
            why = watch.lapsed(self._limits) or watch.overdue(self._limits.later(GRACE_S))
            if why and (job := self._take_back(job_id, one, why)):
                taken.append(job)
        return taken

    def _take_back(self, job_id: str, held: Held, why: Exceeded) -> Job | None:
        try:
            return self._leases.take_back(job_id, held, why)
        except UnusableStore:
            # It can be read and not written, as on a full disk: no worker could renew a lease or
            # store a trial either. All of them get their time again.
            self._watches.clear()
            raise


class Reconciler:
    """Repairs the queue. Any number of processes may do this at once."""

    def __init__(self, leases: Leases, announcer: Announces, limits: AttemptLimits) -> None:
        self._leases = leases
        self._overdue = Overdue(leases, limits)
        self._jobs = JobStore(leases.database)
        self._workers = WorkerStore(leases.database)
        self._announcer = announcer
        self._age_at = self._forget_at = 0.0

    def round(self) -> None:
        """Do one round of repairs. Raises UnusableStore."""
        for job in self._overdue.take_back():
            EXPIRED_LEASES.inc()
            extra = {"job_id": job.id}
            log.warning("job %s: %s: now %s", job.id, job.error, job.state.value, extra=extra)
            if not job.state.finished:
                self._announcer.announce(job)
        if forgotten := self._leases.unannounced(ANNOUNCE_AGAIN):
            self._announcer.announce(forgotten)
        now = time.monotonic()
        if now >= self._age_at:
            self._leases.age()
            self._age_at = now + AGE_EVERY_S
        if now >= self._forget_at:
            # Here, because every service has workers, and not all have a nightly round.
            self._jobs.forget_idempotency_keys()
            self._workers.forget()
            self._forget_at = now + FORGET_EVERY_S
