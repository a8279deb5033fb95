"""A worker with the threads that keep it going when the broker or the database fails."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from tuner.errors import UnusableStore
from tuner.jobs.job import Job
from tuner.jobs.limits import AttemptLimits
from tuner.jobs.workers import BEAT, WorkerInfo
from tuner.store import Leases
from tuner.store.database import Database
from tuner.store.workers import WorkerStore
from workers.child import child_environ
from workers.gpus import LocalGpu, detect_gpus
from workers.logs import Outage
from workers.queue import Announces
from workers.reconcile import EVERY_S, Reconciler
from workers.settings import Settings
from workers.worker import Registration, Worker, describe

log = logging.getLogger("tuner.service")


class Service:
    """Does jobs when woken, and at least every `poll_s` seconds.

    Other threads keep the worker's row up to date and repair the queue.
    """

    def __init__(
        self,
        leases: Leases,
        announcer: Announces,
        gpu: LocalGpu | None,
        info: WorkerInfo,
        limits: AttemptLimits,
        poll_s: float = EVERY_S,
        outage: Outage | None = None,
    ) -> None:
        self._outage = outage or Outage("the store")
        self._reconciler = Reconciler(leases, announcer, limits)
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._registration = Registration(WorkerStore(leases.database), info)
        environ = child_environ(gpu.uuid if gpu else None)
        self.worker = Worker(leases, self._registration, environ, limits)
        rounds: tuple[tuple[str, Callable[[], None], Callable[[], object]], ...] = (
            ("jobs", self._look, partial(self._woken.wait, poll_s)),
            ("reconcile", self._reconcile, partial(self._stopping.wait, EVERY_S)),
            ("beat", self._registration.beat, partial(self._stopping.wait, BEAT.total_seconds())),
        )
        self._threads = [
            threading.Thread(target=self._loop, args=(step, pause), name=name, daemon=True)
            for name, step, pause in rounds
        ]

    def start(self) -> None:
        """Raises UnusableStore."""
        self._registration.beat()  # a job that is posted now has a worker
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look for jobs now, in this service's own thread."""
        self._woken.set()

    def drain(self) -> None:
        """Do the queued jobs in the caller's thread, if the store answers."""
        try:
            self.worker.drain()
        except UnusableStore as error:
            self._outage.begin(error)

    def ask_to_stop(self) -> None:
        """Begin to give back the running job. Only sets flags: signal handlers call it."""
        self._stopping.set()
        self._woken.set()
        self.worker.ask_to_stop()

    def stop(self) -> None:
        """Give back the running job. Returns when its processes are gone."""
        self.ask_to_stop()
        self.worker.stop()
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(UnusableStore):
            self._registration.stopped()

    def _loop(self, step: Callable[[], None], pause: Callable[[], object]) -> None:
        while not self._stopping.is_set():
            try:
                step()
            except UnusableStore as error:  # the next round tries again
                self._outage.begin(error)
            except Exception:
                log.exception("%s: a round failed", threading.current_thread().name)
            pause()

    def _look(self) -> None:
        self._woken.clear()
        self.worker.drain(wait=False)

    def _reconcile(self) -> None:
        self._reconciler.round()
        self._outage.end()  # only here: a look may return without a word to the store


POLL_S = 1.0  # between looks for jobs that another process put into the database


class EmbeddedWorker:
    """One worker for each GPU, or one without a GPU. They are threads; jobs run in child processes.

    Other workers may use the same database. `gpus` defaults to the GPUs of the machine.
    """

    def __init__(self, settings: Settings, gpus: Sequence[LocalGpu] | None = None) -> None:
        self._database = Database.open(settings.database_url)
        found: Sequence[LocalGpu | None] = detect_gpus() if gpus is None else gpus
        outage = Outage("the store")
        self._services = [
            Service(
                Leases(self._database),
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
        self._database.close()
