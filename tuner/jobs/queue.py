"""Define the methods that a local queue and a server share, and which jobs they list."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol

from tuner.jobs.job import Job, JobEvent, JobRequest, JobState, Priority, Submitted
from tuner.jobs.workers import WorkerStatus


@dataclass(frozen=True)
class JobQuery:
    """A choice of jobs to list. A field that is None or empty excludes none."""

    device: str | None = None  # the device table's name
    model: str | None = None  # a part of the name that the job's request has, in either case
    client: str | None = None  # who posted it first
    states: frozenset[JobState] = frozenset()

    def parameters(self) -> dict[str, str | list[str]]:
        """Return the query as the parameters of GET /v1/jobs, without fields at their default."""
        values: dict[str, str | list[str] | None] = {
            "device": self.device,
            "model": self.model,
            "client": self.client,
            "state": sorted(state.value for state in self.states),
        }
        return {name: value for name, value in values.items() if value}

    @property
    def digest(self) -> str:
        """Return 12 hexadecimal digits that are equal for equal queries: a cursor has them."""
        text = json.dumps(self.parameters(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


ALL_JOBS = JobQuery()


class Queue(Protocol):
    """The methods that a local store and a server share."""

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

    def drain(self, name: str) -> object: ...

    def resume(self, name: str) -> object: ...

    def retry(self, job_id: str) -> Job: ...


Json = dict[str, Any]


class Watching(Protocol):
    """The methods that a server and the local store (`workers.local_watching.LocalWatching`) share.

    Values are the JSON objects of the API.
    """

    def watches(self) -> Sequence[Json]: ...

    def add_watch(self, watch: Mapping[str, Any]) -> Json: ...

    def remove_watch(self, watch_id: int) -> None: ...

    def stored(self, device: str | None) -> Iterator[Json]: ...

    def watched(self, device: str | None) -> Iterator[Json]: ...

    def run_night(self, *, dry_run: bool, force: bool) -> Json: ...

    def nights(self, limit: int) -> Sequence[Json]: ...

    def last_night(self) -> Json: ...

    def night_diff(self, before: date, now: date) -> Json: ...

    def workers(self) -> Sequence[WorkerStatus]: ...
