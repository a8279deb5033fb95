"""Workers inside another program, without Redis: `tuner serve` on one machine."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.jobs.job import Job
from tuner.store import Leases
from workers.gpus import LocalGpu, detect_gpus
from workers.service import Service
from workers.settings import Settings

POLL_S = 1.0  # for jobs that another process put into the same database


class EmbeddedWorker:
    """A worker a GPU, or one without; in threads, with the jobs themselves in processes.

    The same claims and leases as anywhere: other workers may use the same database. `gpus`
    defaults to those of the machine.
    """

    def __init__(self, settings: Settings, gpus: Sequence[LocalGpu] | None = None) -> None:
        self._leases = Leases.open(settings.database_url)
        found: Sequence[LocalGpu | None] = detect_gpus() if gpus is None else gpus
        self._services = [
            Service(self._leases, self, gpu, poll_s=POLL_S) for gpu in found or (None,)
        ]

    def start(self) -> None:
        for service in self._services:
            service.start()

    def announce(self, job: Job) -> None:
        """Have the workers look at once. Never blocks, never raises."""
        for service in self._services:
            service.wake()

    def stop(self) -> None:
        """Give the jobs in hand back; returns when their processes are gone."""
        for service in self._services:
            service.stop()
        self._leases.close()
