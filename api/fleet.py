"""The workers as this process saw them lately, and what they say of a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from tuner.jobs.job import JobRequest
from tuner.jobs.workers import JobRequirements, Reasons, WorkerStatus
from tuner.store.database import utc_now
from tuner.store.workers import WorkerStore

SEEN_FOR_S = 2.0  # a submission need not ask the store for each job


class Fleet:
    """The workers, read from the store every two seconds at most. Threads may share it."""

    def __init__(self, workers: WorkerStore) -> None:
        self._store = workers
        self._lock = threading.Lock()
        self._seen: Sequence[WorkerStatus] = ()
        self._again_at = 0.0

    def workers(self) -> Sequence[WorkerStatus]:
        """All known workers. Raises UnusableStore."""
        with self._lock:
            if time.monotonic() >= self._again_at:
                self._seen = self._store.list()
                self._again_at = time.monotonic() + SEEN_FOR_S
            return self._seen

    def unmet(self, request: JobRequest) -> str:
        """Why no living worker can do a job; "" where one can."""
        return JobRequirements.of(request).unmet(self.workers(), utc_now())

    def reasons(self) -> Reasons:
        """Return the object that says of each job why it does not go on."""
        return Reasons(self.workers(), utc_now())
