"""Workers inside another program, without Redis: for `tuner serve` on one machine."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.jobs.job import Job
from tuner.store import Leases
from workers.gpus import LocalGpu, detect_gpus
from workers.outages import Outage
from workers.registration import describe
from workers.service import Service
from workers.settings import Settings

POLL_S = 1.0  # between looks for jobs that another process put into the database


class EmbeddedWorker:
    """One worker for each GPU, or one without a GPU. They are threads; jobs run in child processes.

    Other workers may use the same database. `gpus` defaults to the GPUs of the machine.
    """

    def __init__(self, settings: Settings, gpus: Sequence[LocalGpu] | None = None) -> None:
        self._leases = Leases.open(settings.database_url)
        found: Sequence[LocalGpu | None] = detect_gpus() if gpus is None else gpus
        outage = Outage("the store")
        self._services = [
            Service(
                self._leases,
                self,
                gpu,
                describe(gpu, None, f"serve-{number}"),
                settings.limits,
                poll_s=POLL_S,
                outage=outage,
            )
            for number, gpu in enumerate(found or (None,))
        ]

    def start(self) -> None:
        for service in self._services:
            service.start()

    def announce(self, job: Job) -> None:
        """Make the workers look for jobs at once. Never blocks, never raises."""
        for service in self._services:
            service.wake()

    def stop(self) -> None:
        """Give the running jobs back. Returns when their processes are gone."""
        for service in self._services:
            service.stop()
        self._leases.close()
