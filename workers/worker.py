"""A worker: claims jobs, lets a child process do them, and keeps their leases."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from tuner.errors import StaleLease, UnusableStore
from tuner.jobs.job import HEARTBEAT, Lease
from tuner.jobs.limits import AttemptLimits, AttemptPhase, Stopwatch
from tuner.store import Leases
from workers.attempts import observed
from workers.child import AttemptOutcome, AttemptResult, Runner
from workers.registration import Registration

log = logging.getLogger("tuner.worker")

POLL_S = 2.0  # a cancel is seen after so long at most
RETRY_EVERY_S = 1.0
LAST_WORDS_S = 1.0
STOP_S = 10.0  # a worker that stops waits so long for a store that does not answer
WAIT = timedelta(seconds=30)  # for another worker to finish the same work
STORE_PAUSE = timedelta(seconds=2)  # for a store that failed
# The pause after an attempt that another worker may succeed at. It doubles with each such attempt:
# a broken machine must not use up the attempts of every job in the queue.
BACKOFF_S = 2.0
LONGEST_BACKOFF_S = 60.0


class Worker:
    """Does one job at a time, in a child process that a cancel, a stop or a limit kills.

    A job goes on while the database cannot be reached. If another worker has it by then, its writes
    are refused.
    """

    def __init__(
        self,
        leases: Leases,
        registration: Registration,
        environ: Mapping[str, str],
        limits: AttemptLimits | None = None,
    ) -> None:
        self._leases = leases
        self._registration = registration
        self._limits = limits or AttemptLimits()
        self._runner = Runner(environ)
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._backoff_s = BACKOFF_S

    def drain(self, *, wait: bool = True) -> int:
        """Do jobs until no more can be claimed. Returns their number.

        Without `wait`, do nothing while another thread is doing jobs.
        """
        if not self._turn.acquire(blocking=wait):
            return 0
        done = 0
        try:
            while not self._stopping.is_set():
                info = self._registration.info
                lease = self._leases.claim(info.filters(), info.id, info.preferred())
                if lease is None:
                    break
                self._back_off(self._do(lease))
                done += 1
        finally:
            self._turn.release()
        return done

    def ask_to_stop(self) -> None:
        """Claim no more jobs, and give back the running one soon."""
        self._stopping.set()

    def stop(self) -> None:
        """Ask to stop, and return when the job is given back and the child is gone."""
        self.ask_to_stop()
        with self._turn:
            self._runner.kill()

    def _back_off(self, result: AttemptResult) -> None:
        if result.outcome in (AttemptOutcome.RETRY, AttemptOutcome.REFUSED):
            self._stopping.wait(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S)
        elif result.outcome in (AttemptOutcome.DONE, AttemptOutcome.FAILED):
            self._backoff_s = BACKOFF_S

    def _do(self, lease: Lease) -> AttemptResult:
        with observed(self._leases, lease) as attempt:
            log.info("job %s: attempt begins", lease.job_id, extra={"job_id": lease.job_id})
            self._runner.start(attempt.lease)
            try:
                attempt.result = result = self._watch(lease)
            except BaseException:
                self._runner.kill()
                raise
            text = "job %s: %s%s"
            reason = f": {result.reason}" if result.reason else ""
            extra = {"job_id": lease.job_id}
            log.info(text, lease.job_id, result.outcome.value, reason, extra=extra)
        return result

    def _watch(self, lease: Lease) -> AttemptResult:
        """Keep the lease until the attempt has ended, and store how it ended."""
        beaten = looked = time.monotonic()
        watch: Stopwatch | None = None
        while True:
            result = self._runner.poll(POLL_S)
            if result is not None:
                return self._settle(lease, result)
            if self._stopping.is_set():
                return self._abandon(lambda: self._leases.release(lease), "the worker stops")
            now = time.monotonic()
            try:
                held = self._leases.look(lease)
                if held.cancel_requested:
                    return self._abandon(lambda: self._leases.cancelled(lease), "cancelled")
                if now - beaten >= HEARTBEAT.total_seconds():
                    self._leases.heartbeat(lease)
                    beaten = now
            except StaleLease as error:
                return self._lost(lease, error)
            except UnusableStore:
                continue  # whether the lease is lost is known when the store answers again
            if held.began:
                self._registration.started()
            watch = watch or Stopwatch(held)
            watch.look(held, now - looked)
            looked = now
            if why := watch.overdue(self._limits):
                self._runner.kill()
                starts = why.phase is AttemptPhase.START
                outcome = AttemptOutcome.REFUSED if starts else AttemptOutcome.RETRY
                return self._settle(lease, AttemptResult(outcome, why.reason))

    def _lost(self, lease: Lease, error: StaleLease) -> AttemptResult:
        # The child may just have stored the end, and not said so yet.
        if last := self._runner.poll(LAST_WORDS_S):
            return self._settle(lease, last)
        return self._abandon(lambda: None, str(error))

    def _abandon(self, write: Callable[[], object], reason: str) -> AttemptResult:
        self._runner.kill()
        self._until_stored(write)
        return AttemptResult(AttemptOutcome.STALE, reason)

    def _settle(self, lease: Lease, result: AttemptResult) -> AttemptResult:
        if result.outcome is AttemptOutcome.FAILED:
            self._until_stored(lambda: self._leases.fail(lease, result.reason))
        elif result.outcome is AttemptOutcome.RETRY:
            self._until_stored(lambda: self._leases.retry(lease, result.reason))
        elif result.outcome is AttemptOutcome.REFUSED:
            self._until_stored(lambda: self._leases.refuse(lease, result.reason))
            self._until_stored(lambda: self._registration.failed_to_start(result.reason))
        elif result.outcome is AttemptOutcome.STORE_FAILED:
            self._until_stored(lambda: self._leases.release(lease, result.reason, STORE_PAUSE))
        elif result.outcome is AttemptOutcome.WAIT:
            self._until_stored(lambda: self._leases.release(lease, result.reason, WAIT))
        return result

    def _until_stored(self, write: Callable[[], object]) -> None:
        """Write to a database that may be unreachable for long, until this worker has to stop."""
        deadline = None
        while True:
            try:
                write()
                return
            except StaleLease:
                return  # it is stored already, or another worker has the job
            except UnusableStore:
                if self._stopping.is_set():
                    # The lease then runs out, and another worker gets the job.
                    deadline = deadline or time.monotonic() + STOP_S
                    if time.monotonic() > deadline:
                        return
                time.sleep(RETRY_EVERY_S)
