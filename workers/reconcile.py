"""Puts right what was killed in between: leases that ran out, messages that were lost."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Protocol

from tuner.jobs import Job
from tuner.store import Leases

log = logging.getLogger("tuner.reconcile")

EVERY_S = 5.0
ANNOUNCE_AGAIN = timedelta(seconds=30)


class Announces(Protocol):
    """Whoever can wake workers."""

    def announce(self, job: Job) -> None: ...


def reconcile(leases: Leases, announcer: Announces) -> None:
    """One round. Any number of processes may do this at once; raises UnusableStore."""
    for job in leases.expire():
        log.warning("job %s: %s: now %s", job.id, job.error, job.state.value)
        if not job.state.finished:
            announcer.announce(job)
    if forgotten := leases.unannounced(ANNOUNCE_AGAIN):
        announcer.announce(forgotten)
