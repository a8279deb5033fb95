"""Run a worker: claim jobs, let a child process do them, and keep their leases."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from tuner.childprocess import ChildDied, ChildProcess
from tuner.errors import StaleLease, UnusableStore
from tuner.jobs.attempts import (
    AttemptLimits,
    AttemptOutcome,
    AttemptPhase,
    AttemptResult,
    Stopwatch,
)
from tuner.jobs.job import HEARTBEAT, Lease
from tuner.store.leases import Leases
from tuner.store.workers import Figures, JobTimes
from workers.machine import GPU_VARIABLE, Registration
from workers.metrics import ATTEMPTS, DURATION, LOST_LEASES, WAIT

MODULE = "workers.run_job"
JOBS_A_CHILD = 200  # then a new child takes over, which ends any leak


class Runner:
    """Does jobs in a child process, one at a time. A job that measures gets a new child."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._child: ChildProcess | None = None
        self._ready = False
        self._jobs_left = 0
        self._obstacle = ""

    def start(self, lease: Lease) -> None:
        """Give the job to a child. If the child does not start, or dies with it, `poll` tells."""
        if self._child is None or lease.request.needs_gpu or _died(self._child):
            self.kill()
            try:
                self._child, self._ready = ChildProcess(MODULE, self._environ), False
            except OSError as error:  # no memory or process is left, or the interpreter is gone
                self._obstacle = str(error.strerror)
                return
            self._jobs_left = 1 if lease.request.needs_gpu else JOBS_A_CHILD
        with contextlib.suppress(ChildDied):
            self._child.send(
                {
                    "job_id": lease.job_id,
                    "owner": lease.owner,
                    "fence": lease.fence,
                    "request": lease.request.as_json(),
                }
            )

    def poll(self, timeout_s: float) -> AttemptResult | None:
        """Return how the job ended; None while it goes on. Waits up to `timeout_s` seconds."""
        if self._child is None:
            return _refusal(self._obstacle)
        try:
            answer: dict[str, Any] | None = self._child.poll(timeout_s)
        except ChildDied as death:
            self.kill()
            if not self._ready:
                return _refusal(str(death))
            return AttemptResult(AttemptOutcome.RETRY, str(death))
        if answer is None:
            return None
        if "ready" in answer:
            self._ready = True
            return None
        self._jobs_left -= 1
        if not self._jobs_left:
            self.kill()
        return AttemptResult(AttemptOutcome(answer["outcome"]), answer["reason"])

    def kill(self) -> None:
        """Kill the child, and all processes that it started, at once."""
        if self._child is not None:
            self._child.reap()
            self._child = None


def _refusal(why: str) -> AttemptResult:
    reason = f"the tuning process did not start: {why}"
    return AttemptResult(AttemptOutcome.REFUSED, reason)


def _died(child: ChildProcess) -> bool:
    """Say whether a child without a job has ended, which is no fault of the next job."""
    try:
        child.poll(0)
    except ChildDied:
        return True
    return False


def child_environ(gpu: str | None) -> dict[str, str]:
    """Return this process's environment for a child, which may use that GPU only; None: no GPU."""
    if gpu is None:
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, GPU_VARIABLE: gpu}


log = logging.getLogger("tuner.worker")


class Attempt:
    """An attempt that is under way."""

    result: AttemptResult | None = None  # to be set when it has ended


@contextmanager
def observed(leases: Leases, lease: Lease) -> Iterator[Attempt]:
    """Count and time the attempt that the block makes."""
    figures = Figures(leases.database)
    times = _times(figures, lease)
    if lease.fence == 1 and times and times.started_at:
        waited_s = _seconds(times.queued_at, times.started_at)
        WAIT.labels(lease.request.device).observe(waited_s)
    attempt = Attempt()
    yield attempt
    if attempt.result is not None:
        _count(lease, attempt.result, _times(figures, lease))


def _count(lease: Lease, result: AttemptResult, times: JobTimes | None) -> None:
    device, outcome = lease.request.device, result.outcome.value
    if times is None and result.outcome is AttemptOutcome.STALE:
        LOST_LEASES.inc()
    if times and times.started_at and times.finished_at:
        # The parent may see the job's end in the store before it hears of it from the child.
        outcome = times.state.value
        DURATION.labels(device, outcome).observe(_seconds(times.started_at, times.finished_at))
    ATTEMPTS.labels(device, outcome).inc()


def _times(figures: Figures, lease: Lease) -> JobTimes | None:
    with suppress(UnusableStore):  # the figures of one job are not worth an attempt
        return figures.job_times(lease)
    return None


def _seconds(since: datetime, until: datetime) -> float:
    return max((until - since).total_seconds(), 0.0)


POLL_S = 2.0  # a cancel is seen after so long at most
RETRY_EVERY_S = 1.0
LAST_WORDS_S = 1.0
STOP_S = 10.0  # a worker that stops waits so long for a store that does not answer
WAIT_AGAIN = timedelta(seconds=30)  # for another worker to finish the same work
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

    def drain(self) -> int:
        """Do jobs until no more can be claimed. Returns their number."""
        done = 0
        with self._turn:
            while not self._stopping.is_set():
                info = self._registration.info
                lease = self._leases.claim(info.filters(), info.id, info.preferred())
                if lease is None:
                    break
                self._back_off(self._do(lease))
                done += 1
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
        if result.outcome in (AttemptOutcome.RETRY, AttemptOutcome.REFUSED, AttemptOutcome.BUSY):
            self._stopping.wait(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S)
        elif result.outcome in (AttemptOutcome.DONE, AttemptOutcome.FAILED):
            self._backoff_s = BACKOFF_S

    def _do(self, lease: Lease) -> AttemptResult:
        with observed(self._leases, lease) as attempt:
            log.info("job %s: attempt begins", lease.job_id, extra={"job_id": lease.job_id})
            self._runner.start(lease)
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
        """Keep the lease until the attempt has ended, and store its outcome."""
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
        elif result.outcome is AttemptOutcome.BUSY:
            self._until_stored(lambda: self._leases.release(lease, result.reason))
        elif result.outcome is AttemptOutcome.WAIT:
            self._until_stored(lambda: self._leases.release(lease, result.reason, WAIT_AGAIN))
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
