"""A worker: claims jobs, lets a child process do them, and keeps their leases."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from tuner.errors import StaleLease, UnusableStore
from tuner.jobs.job import HEARTBEAT, LEASE, JobFilter, Lease
from tuner.store import Leases
from workers.attempts import observed
from workers.child import AttemptOutcome, AttemptResult, Runner

log = logging.getLogger("tuner.worker")

POLL_S = 2.0  # a cancel is seen after so long at most
RETRY_EVERY_S = 1.0
WAIT = timedelta(seconds=30)  # for another worker to finish the same work
# The pause after an attempt that another worker may succeed at. It doubles with each such attempt:
# a broken machine must not use up the attempts of every job in the queue.
BACKOFF_S = 2.0
LONGEST_BACKOFF_S = 60.0


class Worker:
    """Does one job at a time, in a child process that a cancel or a stop kills.

    A job goes on while the database cannot be reached, until its lease may have expired.
    """

    def __init__(
        self,
        leases: Leases,
        filters: Sequence[JobFilter],
        environ: Mapping[str, str],
        name: str = "",
    ) -> None:
        self.owner = f"{name or 'worker'}@{socket.gethostname()}:{os.getpid()}"
        self.owner += f":{secrets.token_hex(3)}"  # a reboot gives out the same process ids again
        self._leases = leases
        self._filters = filters
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
                lease = self._leases.claim(self._filters, self.owner)
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
        if result.outcome is AttemptOutcome.RETRY:
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
        kept = beaten = time.monotonic()
        while True:
            result = self._runner.poll(POLL_S)
            if result is not None:
                return self._settle(lease, result)
            if self._stopping.is_set():
                return self._abandon(lambda: self._leases.release(lease), "the worker stops")
            now = time.monotonic()
            try:
                if self._leases.must_stop(lease):
                    return self._abandon(lambda: self._leases.cancelled(lease), "cancelled")
                if now - beaten >= HEARTBEAT.total_seconds():
                    self._leases.heartbeat(lease)
                    kept = beaten = now
            except StaleLease as error:
                return self._abandon(lambda: None, str(error))
            except UnusableStore as error:
                if now - kept >= LEASE.total_seconds():
                    return self._abandon(lambda: None, str(error))

    def _abandon(self, write: Callable[[], object], reason: str) -> AttemptResult:
        self._runner.kill()
        _retry_until_stored(write)
        return AttemptResult(AttemptOutcome.STALE, reason)

    def _settle(self, lease: Lease, result: AttemptResult) -> AttemptResult:
        if result.outcome is AttemptOutcome.FAILED:
            _retry_until_stored(lambda: self._leases.fail(lease, result.reason))
        elif result.outcome in (AttemptOutcome.RETRY, AttemptOutcome.ELSEWHERE):
            _retry_until_stored(lambda: self._leases.retry(lease, result.reason))
        elif result.outcome is AttemptOutcome.WAIT:
            _retry_until_stored(lambda: self._leases.release(lease, result.reason, WAIT))
        return result


def _retry_until_stored(write: Callable[[], object]) -> None:
    """Write to a database that may be unreachable for a moment; else the lease expires."""
    deadline = time.monotonic() + LEASE.total_seconds()
    while True:
        try:
            write()
            return
        except StaleLease:
            return  # it is stored already, or another worker has the job
        except UnusableStore:
            if time.monotonic() > deadline:
                return
            time.sleep(RETRY_EVERY_S)
