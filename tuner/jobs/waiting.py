"""Why a job does not go on: no worker can do it, or its worker sends no heartbeats.

`stalled` is no state of the stored job. It is a word for people: a reconciler takes the job back by
its own clock, and until then the worker may come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from tuner.jobs.job import HEARTBEAT, HELD, LEASE, Job, JobState, iso
from tuner.jobs.workers import JobRequirements, WorkerStatus

SILENT = 2.5 * HEARTBEAT  # two heartbeats were missed, and a third is nearly due


@dataclass(frozen=True)
class Stalled:
    """What is known of a job that a silent worker holds. `why` says it in words."""

    worker: str  # its name, or its id where it is not known
    heartbeat_at: datetime  # the last one
    last_step_at: datetime  # the job's newest event: most often a batch of trials
    lease_ends_at: datetime
    another: bool  # whether another living worker can take the job then
    why: str

    def as_json(self) -> dict[str, Any]:
        times = ("heartbeat_at", "last_step_at", "lease_ends_at")
        return {**asdict(self), **{name: iso(getattr(self, name)) for name in times}}


class Reasons:
    """Says of jobs why they do not go on, by the workers that are known and the time of day."""

    def __init__(self, workers: Sequence[WorkerStatus], now: datetime) -> None:
        self._workers, self._now = workers, now
        self._unmet: dict[JobRequirements, str] = {}  # a list of jobs has few needs

    def stalled(self, job: Job) -> Stalled | None:
        """What is known of a held job whose worker is silent; None of any other job."""
        if job.state not in HELD or job.lease_expires_at is None:
            return None
        heartbeat = job.lease_expires_at - LEASE
        if self._now - heartbeat < SILENT:
            return None
        owner = next((one.info.name for one in self._workers if one.info.id == job.owner), "")
        others = [one for one in self._workers if one.info.id != job.owner]
        need = JobRequirements.of(job.request)
        another = any(one.takes_jobs and need.met_by(one.info) for one in others)
        found = Stalled(
            owner or job.owner, heartbeat, job.updated_at, job.lease_expires_at, another, ""
        )
        return replace(found, why=self._said(found))

    def why(self, job: Job) -> str:
        """Why a job does not go on; "" if nothing is known to hinder it."""
        if stalled := self.stalled(job):
            return stalled.why
        if job.state is not JobState.QUEUED:
            return ""
        if unmet := self.unmet(JobRequirements.of(job.request)):
            return unmet
        if job.available_at > self._now:
            after = f" after: {job.error}" if job.error else ""
            return f"it is tried again at {self._clock(job.available_at)}{after}"
        return ""

    def unmet(self, need: JobRequirements) -> str:
        """Why no living worker can do a job of that need; "" if one can."""
        if need not in self._unmet:
            self._unmet[need] = need.unmet(self._workers, self._now)
        return self._unmet[need]

    def as_json(self, job: Job) -> Mapping[str, Any]:
        """The fields of the API's answers that say why a job does not go on."""
        stalled = self.stalled(job)
        return {"waiting": self.why(job), "stalled": stalled and stalled.as_json()}

    def _said(self, found: Stalled) -> str:
        silent = (
            f"{found.worker} has sent no heartbeat since {self._clock(found.heartbeat_at)}, "
            f"and the job's last step was at {self._clock(found.last_step_at)}"
        )
        ended = found.lease_ends_at <= self._now
        lease = f"its lease {'ended' if ended else 'ends'} at {self._clock(found.lease_ends_at)}"
        if not found.another:
            return f"{silent}; {lease}, and no other living worker can take the job"
        then = "another worker takes the job soon" if ended else "then another worker takes the job"
        return f"{silent}; {lease}, {then}"

    def _clock(self, at: datetime) -> str:
        form = "%H:%M:%S UTC" if at.date() == self._now.date() else "%Y-%m-%d %H:%M:%S UTC"
        return at.strftime(form)
