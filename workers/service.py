"""Run a worker with the threads that keep it going when the broker or the database fails.

Each worker is a reconciler too: it takes back jobs that make no progress, and sends the messages of
queued jobs again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from tuner.errors import UnusableStore
from tuner.jobs.attempts import AttemptLimits, Exceeded, HeldJob, Stopwatch
from tuner.jobs.job import Job
from tuner.jobs.workers import BEAT, WorkerInfo
from tuner.store.database import Database
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.workers import WorkerStore
from workers.machine import LocalGpu, Registration, describe, detect_gpus
from workers.metrics import EXPIRED_LEASES
from workers.queue import Announces
from workers.settings import STORE_LIMITS, Settings
from workers.telemetry import Outage
from workers.worker import Worker, child_environ

log = logging.getLogger("tuner.service")
reconcile_log = logging.getLogger("tuner.reconcile")

EVERY_S = 5.0
ANNOUNCE_AGAIN = timedelta(seconds=30)
FORGET_EVERY_S = 3600.0
# A worker's own parent ends a child that exceeds a limit. It gets so much time to do that first.
GRACE_S = 15.0


class Overdue:
    """Takes jobs back whose workers are gone or make no progress, on this process's own clock.

    Stored times are not compared with the time of day: a clock that jumps takes no job away.
    """

    def __init__(
        self, leases: Leases, limits: AttemptLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._leases = leases
        self._limits = limits
        self._clock = clock
        self._looked_at = clock()
        self._watches: dict[str, Stopwatch] = {}

    def take_back(self) -> Sequence[Job]:
        """Look at the held jobs, and return the jobs that were taken back. Raises UnusableStore."""
        held = self._leases.held()
        now = self._clock()
        elapsed_s, self._looked_at = now - self._looked_at, now
        known = self._watches
        self._watches = {job_id: known.get(job_id, Stopwatch(one)) for job_id, one in held.items()}
        taken = []
        for job_id, one in held.items():
            watch = self._watches[job_id]
            watch.look(one, elapsed_s)
            why = watch.lapsed(self._limits) or watch.overdue(self._limits.later(GRACE_S))
            if why and (job := self._take_back(job_id, one, why)):
                taken.append(job)
        return taken

    def _take_back(self, job_id: str, held: HeldJob, why: Exceeded) -> Job | None:
        try:
            return self._leases.take_back(job_id, held, why)
        except UnusableStore:
            # It can be read and not written, as on a full disk: no worker could renew a lease or
            # store a trial either. All of them get their time again.
            self._watches.clear()
            raise


class Reconciler:
    """Repairs the damage of broken processes: jobs without progress, and lost messages.

    It also deletes rows that nobody asks for any more. Any number of processes may do this at once.
    """

    def __init__(self, leases: Leases, announcer: Announces, limits: AttemptLimits) -> None:
        self._leases = leases
        self._overdue = Overdue(leases, limits)
        self._jobs = JobStore(leases.database)
        self._workers = WorkerStore(leases.database)
        self._announcer = announcer
        self._forget_at = 0.0

    def round(self) -> None:
        """Do one round of repairs. Raises UnusableStore."""
        for job in self._overdue.take_back():
            EXPIRED_LEASES.inc()
            extra = {"job_id": job.id}
            said = job.id, job.error, job.state.value
            reconcile_log.warning("job %s: %s: now %s", *said, extra=extra)
            if not job.state.finished:
                self._announcer.announce(job)
        if forgotten := self._leases.unannounced(ANNOUNCE_AGAIN):
            self._announcer.announce(forgotten)
        now = time.monotonic()
        if now >= self._forget_at:
            # Here, because every service has workers, and not all have a nightly round.
            self._jobs.forget_idempotency_keys()
            self._workers.forget()
            self._forget_at = now + FORGET_EVERY_S


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
        """Start the threads. Raises UnusableStore."""
        self._registration.beat()  # a job that is posted now has a worker
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look for jobs now, in this service's own thread."""
        self._woken.set()

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
        self.worker.drain()

    def _reconcile(self) -> None:
        self._reconciler.round()
        self._outage.end()  # only here: a look may return without a word to the store


POLL_S = 1.0  # between looks for jobs that another process put into the database


class EmbeddedWorker:
    """A worker for each GPU, or a worker without a GPU. They are threads; jobs run in child
    processes.

    Other workers may use the same database. `gpus` defaults to the GPUs of the machine.
    """

    def __init__(self, settings: Settings, gpus: Sequence[LocalGpu] | None = None) -> None:
        self._database = Database.open(settings.database_url, STORE_LIMITS)
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
