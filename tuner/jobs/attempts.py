"""Define an attempt at a job: its outcome, and its limits without progress.

Times are on the clock of the process that watches it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from tuner.jobs.job import LEASE

# A process that was itself stopped for a while has not watched the job in that time.
LONGEST_LOOK_S = 15.0


class AttemptOutcome(str, Enum):
    """The outcome of an attempt."""

    DONE = "done"  # its winners are published
    FAILED = "failed"  # every attempt would fail
    RETRY = "retry"  # another attempt may succeed
    REFUSED = "refused"  # nothing can be tuned here: the job is not to blame
    STORE_FAILED = "store failed"  # neither the job nor the worker is to blame
    WAIT = "wait"  # another worker is doing the same work
    BUSY = "busy"  # another process measures on this worker's GPU
    STALE = "stale"  # the lease was lost


@dataclass(frozen=True)
class AttemptResult:
    """The outcome of an attempt, and the reason."""

    outcome: AttemptOutcome
    reason: str = ""

    def as_json(self) -> dict[str, str]:
        return {"outcome": self.outcome.value, "reason": self.reason}


class AttemptPhase(str, Enum):
    """The next step of a held job."""

    START = "start"
    FIRST_TRIAL = "first_trial"
    NEXT_TRIAL = "next_trial"


@dataclass(frozen=True)
class AttemptLimits:
    """Seconds until a held job is taken back."""

    lease_s: float = LEASE.total_seconds()  # without a renewal
    # Longer than all that two measuring processes may take for their imports and first tensors.
    start_s: float = 900.0
    # Longer than a backend's kernel may take in two processes, each with the inputs of its point.
    # The races at the end of a run store no trials.
    first_trial_s: float = 1200.0
    next_trial_s: float = 1200.0
    attempt_s: float = 21_600.0

    def of(self, phase: AttemptPhase) -> float:
        """Return the longest time that a phase may last."""
        by_phase = {
            AttemptPhase.START: self.start_s,
            AttemptPhase.FIRST_TRIAL: self.first_trial_s,
            AttemptPhase.NEXT_TRIAL: self.next_trial_s,
        }
        return by_phase[phase]

    def later(self, by_s: float) -> AttemptLimits:
        """Return the same limits, with more time for each phase."""
        return replace(
            self,
            start_s=self.start_s + by_s,
            first_trial_s=self.first_trial_s + by_s,
            next_trial_s=self.next_trial_s + by_s,
            attempt_s=self.attempt_s + by_s,
        )


@dataclass(frozen=True)
class HeldJob:
    """A job that a worker holds, as the store shows it."""

    fence: int
    owner: str
    began: bool  # its run has begun
    trial_count: int  # stored in this attempt
    renewal: datetime | None  # a new time after each heartbeat
    cancel_requested: bool = False

    @property
    def phase(self) -> AttemptPhase:
        if not self.began:
            return AttemptPhase.START
        return AttemptPhase.NEXT_TRIAL if self.trial_count else AttemptPhase.FIRST_TRIAL


@dataclass(frozen=True)
class Exceeded:
    """A limit that a held job exceeds."""

    reason: str
    phase: AttemptPhase | None = None  # None: the lease, or the attempt as a whole


class Stopwatch:
    """The seconds that a held job has spent in its present state."""

    def __init__(self, held: HeldJob) -> None:
        self._held = held
        self._since_renewal_s = self._in_phase_s = self._held_s = 0.0

    def look(self, held: HeldJob, elapsed_s: float) -> None:
        """Compare the job with its state `elapsed_s` seconds ago."""
        elapsed_s = min(elapsed_s, LONGEST_LOOK_S)
        before, self._held = self._held, held
        if (held.fence, held.owner) != (before.fence, before.owner):
            self._since_renewal_s = self._in_phase_s = self._held_s = 0.0
            return
        self._held_s += elapsed_s
        self._since_renewal_s = (
            self._since_renewal_s + elapsed_s if held.renewal == before.renewal else 0.0
        )
        same = (held.phase, held.trial_count) == (before.phase, before.trial_count)
        self._in_phase_s = self._in_phase_s + elapsed_s if same else 0.0

    def lapsed(self, limits: AttemptLimits) -> Exceeded | None:
        """Return the exceeded limit if the lease was not renewed for too long."""
        if self._since_renewal_s <= limits.lease_s:
            return None
        return Exceeded(f"the lease of {self._held.owner} expired")

    def overdue(self, limits: AttemptLimits) -> Exceeded | None:
        """Return the exceeded limit if the job made no progress for too long, or goes on for too
        long.
        """
        phase = self._held.phase
        if self._in_phase_s > limits.of(phase):
            what = {
                AttemptPhase.START: "did not begin to tune",
                AttemptPhase.FIRST_TRIAL: "stored no trial",
                AttemptPhase.NEXT_TRIAL: "stored no further trial",
            }[phase]
            return Exceeded(f"{self._held.owner} {what} in {limits.of(phase):g} s", phase)
        if self._held_s > limits.attempt_s:
            return Exceeded(f"{self._held.owner} was not done in {limits.attempt_s:g} s")
        return None
