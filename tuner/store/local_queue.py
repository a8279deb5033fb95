"""The queue of a store on this machine, as the command line uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.jobs.job import Job, JobEvent, JobRequest, Priority, Submitted
from tuner.jobs.queue import ALL_JOBS, JobQuery
from tuner.jobs.workers import JobRequirements, Reasons, WorkerStatus
from tuner.store.api_key import LOCAL
from tuner.store.database import Queries, utc_now
from tuner.store.figures import Estimates
from tuner.store.jobs import JobStore
from tuner.store.submissions import Submission
from tuner.store.workers import WorkerStore


class LocalQueue(Queries):
    """What `tuner.jobs.client.Queue` asks for. Methods raise UnusableStore."""

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

    def get(self, job_id: str) -> Job:
        """The job. Raises UnknownJob."""
        return self._jobs.get(job_id)

    def list(self, query: JobQuery = ALL_JOBS, *, limit: int = 50) -> Sequence[Job]:
        """List jobs."""
        return self._jobs.list(query, limit=limit)

    def cancel(self, job_id: str, *, everyone: bool = False) -> Job:
        """Withdraw from the job, or end it for everyone. Raises UnknownJob."""
        return self._jobs.cancel(job_id, None if everyone else LOCAL)

    def retry(self, job_id: str) -> Job:
        """Queue a dead, failed or cancelled job again. Raises UnknownJob and NotRetriable."""
        return self._jobs.retry(job_id, LOCAL)

    def events(self, job_id: str, after: int = 0) -> Sequence[JobEvent]:
        """A job's events after number `after`, until now."""
        return self._jobs.events(job_id, after)

    def waiting(self, job: Job) -> str:
        """Why a job does not go on; "" if nothing is known to hinder it."""
        return Reasons(self.workers(), utc_now()).why(job)

    def list_waiting(
        self, query: JobQuery = ALL_JOBS, *, limit: int = 50
    ) -> Sequence[tuple[Job, str]]:
        """List jobs, each with the reason why it does not go on."""
        found = self._jobs.list(query, limit=limit)
        reasons = Reasons(self.workers(), utc_now())
        return [(job, reasons.why(job)) for job in found]

    def workers(self) -> Sequence[WorkerStatus]:
        """The workers of the last weeks."""
        return self._workers.list()

    def drain(self, name: str) -> None:
        """Let workers take no more jobs. Raises BadInput."""
        self._workers.drain(name)

    def resume(self, name: str) -> None:
        """Let workers take jobs again. Raises BadInput."""
        self._workers.resume(name)

    @property
    def _jobs(self) -> JobStore:
        return JobStore(self.database)

    @property
    def _workers(self) -> WorkerStore:
        return WorkerStore(self.database)
