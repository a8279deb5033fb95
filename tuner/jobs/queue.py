"""What the queue of a local store and the queue of a server have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tuner.jobs.job import Job, JobEvent, JobRequest, Priority, Submitted
from tuner.jobs.listing import ALL_JOBS, JobQuery
from tuner.jobs.workers import WorkerStatus


class Queue(Protocol):
    """What a local store and a server have in common."""

    def submit_all(
        self, requests: Sequence[JobRequest], *, priority: Priority
    ) -> Sequence[Submitted]: ...

    def get(self, job_id: str) -> Job: ...

    def list(self, query: JobQuery = ALL_JOBS, *, limit: int = 50) -> Sequence[Job]: ...

    def cancel(self, job_id: str, *, everyone: bool = False) -> Job: ...

    def events(self, job_id: str, after: int = 0) -> Sequence[JobEvent] | Iterator[JobEvent]: ...

    def waiting(self, job: Job) -> str: ...

    def list_waiting(
        self, query: JobQuery = ALL_JOBS, *, limit: int = 50
    ) -> Sequence[tuple[Job, str]]: ...

    def workers(self) -> Sequence[WorkerStatus]: ...

    def drain(self, name: str) -> None: ...

    def resume(self, name: str) -> None: ...

    def retry(self, job_id: str) -> Job: ...
