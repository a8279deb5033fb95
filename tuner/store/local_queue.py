"""The queue of a store on this machine, as the command line uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.jobs.job import Job, JobRequest, Priority, Submitted
from tuner.jobs.queue import ALL_JOBS, JobQuery
from tuner.jobs.workers import JobRequirements, Reasons
from tuner.store.api_key import LOCAL
from tuner.store.database import Database, Queries, utc_now
from tuner.store.figures import Estimates
from tuner.store.jobs import JobStore
from tuner.store.submissions import Submission
from tuner.store.workers import WorkerStore


class LocalQueue(Queries):
    """The `tuner.jobs.queue.Queue` of a database. Methods raise UnusableStore."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        jobs, workers = JobStore(database), WorkerStore(database)
        self._jobs = jobs
        self.get, self.list, self.events = jobs.get, jobs.list, jobs.events
        self.workers, self.drain, self.resume = workers.list, workers.drain, workers.resume

    def submit_all(
        self, requests: Sequence[JobRequest], *, priority: Priority
    ) -> Sequence[Submitted]:
        """Queue jobs, or find the ones that answer the requests: all or none."""
        workers = self.workers()
        wanted = [
            Submission(request, priority, JobRequirements.of(request).unmet(workers, utc_now()))
            for request in requests
        ]
        estimates = Estimates(self.database)
        answers = self._jobs.submit_all(wanted, client=LOCAL)
        return [replace(one, estimated_gpu_s=estimates.of(one.job)) for one in answers]

    def cancel(self, job_id: str, *, everyone: bool = False) -> Job:
        """Withdraw from the job, or end it for everyone. Raises UnknownJob."""
        return self._jobs.cancel(job_id, None if everyone else LOCAL)

    def retry(self, job_id: str) -> Job:
        """Queue a dead, failed or cancelled job again. Raises UnknownJob and NotRetriable."""
        return self._jobs.retry(job_id, LOCAL)

    def waiting(self, job: Job) -> str:
        """Why a job does not go on; "" if nothing is known to hinder it."""
        return Reasons(self.workers(), utc_now()).why(job)

    def list_waiting(
        self, query: JobQuery = ALL_JOBS, *, limit: int = 50
    ) -> Sequence[tuple[Job, str]]:
        """List jobs, each with the reason why it does not go on."""
        found = self.list(query, limit=limit)
        reasons = Reasons(self.workers(), utc_now())
        return [(job, reasons.why(job)) for job in found]
