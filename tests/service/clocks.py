"""Clocks that go on when they are told to, and a reconciler that follows one."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from tuner.jobs.attempts import AttemptLimits
from tuner.jobs.job import LEASE, Job
from tuner.store.leases import Leases
from workers.service import Overdue


@dataclass
class Clock:
    """A time that goes on when it is told to."""

    now: datetime = field(default=datetime(2026, 11, 1, tzinfo=timezone.utc))

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta) -> None:
        self.now += by


class Watcher:
    """A reconciler that watches the jobs, every five seconds on its own clock."""

    def __init__(self, leases: Leases, limits: AttemptLimits | None = None) -> None:
        self.now = 0.0
        self._overdue = Overdue(leases, limits or AttemptLimits(), lambda: self.now)
        self._overdue.take_back()

    def watch(self, seconds: float) -> list[Job]:
        """What was taken back meanwhile."""
        taken: list[Job] = []
        while seconds > 0:
            step = min(seconds, 5.0)
            self.now += step
            seconds -= step
            taken += self._overdue.take_back()
        return taken


def expire(leases: Leases) -> list[Job]:
    """What is taken back after a lease's time without a heartbeat."""
    return Watcher(leases).watch(LEASE.total_seconds() + 1)
