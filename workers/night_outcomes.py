"""What came of a night: each thing that it queued, its job's present state, and the gains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.jobs.job import Job, JobRequest, JobState
from tuner.problems.records import Winner
from tuner.store import JobStore
from tuner.store.current_winners import current_winners
from tuner.store.database import Database
from tuner.store.lookups import Lookups
from tuner.store.results import ResultStore
from tuner.tuning.gains import gains, mean_gain

KINDS = ("missing", "stale", "revalidated")  # of what a round queues, in its summary


@dataclass(frozen=True)
class Outcome:
    """A thing that a night queued, and what came of it."""

    kind: str  # of KINDS
    queued: Mapping[str, Any]  # as the night's summary has it
    job: Job | None  # None: nothing was queued, or a night before job_id was recorded
    gain_after: float | None  # of what is published where the job ran, once it is done

    @property
    def failed(self) -> bool:
        return self.job is not None and self.job.state in (JobState.FAILED, JobState.DEAD)

    def as_json(self) -> dict[str, Any]:
        job = self.job
        return {
            **self.queued,
            "kind": self.kind,
            "why": self.queued.get("why", ""),
            "job_id": job.id if job else self.queued.get("job_id"),
            "state": job.state.value if job else None,
            "error": job.error if job else "",
            "gain_before": self.queued.get("gain_before"),
            "gain_after": self.gain_after,
        }


def gain_now(request: JobRequest, results: ResultStore) -> float | None:
    """The mean gain of the results that count now for a request; None without any."""
    engine = request.engine.partition("==")[0].strip()
    found = results.winners_at(request.problem, request.device, engine)
    return _gain(current_winners(found))


def outcomes(summary: Mapping[str, Any], store: Database) -> list[Outcome]:
    """What came of the things that a night queued: failures first, then in the summary's order."""
    queued = list(_queued(summary))
    ids = {one["job_id"] for _, one in queued if one.get("job_id")}
    jobs = JobStore.sharing(store).with_ids(ids)
    after = {
        job.id: _gain(Lookups.sharing(store).winners_of(job.run_id))
        for job in jobs.values()
        if job.state is JobState.DONE and job.run_id is not None
    }
    found = []
    for kind, one in queued:
        job = jobs.get(one.get("job_id") or "")
        found.append(Outcome(kind, one, job, after.get(job.id) if job else None))
    return sorted(found, key=lambda one: not one.failed)


def _queued(summary: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind in KINDS:
        for one in summary.get(kind) or ():
            yield kind, one


def _gain(winners: Sequence[Winner]) -> float | None:
    return mean_gain(one.ratio for one in gains(winner.entry for winner in winners))
