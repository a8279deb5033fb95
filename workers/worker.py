"""A worker: claims jobs, lets a child process do them, and keeps their leases."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, version

from tuner.engines.engine import engine_names, find_engine
from tuner.engines.locate import find_packages
from tuner.engines.versions import version_order
from tuner.errors import StaleLease, UnusableStore
from tuner.jobs.job import HEARTBEAT, Cost, JobRequest, JobState, Lease
from tuner.jobs.limits import AttemptLimits, AttemptPhase, Stopwatch
from tuner.jobs.workers import WorkerInfo, WorkerState
from tuner.store.figures import Figures, JobTimes
from tuner.store.leases import Leases
from tuner.store.workers import WorkerStore
from workers.child import AttemptOutcome, AttemptResult, Runner
from workers.gpus import LocalGpu
from workers.metrics import ATTEMPTS, CPU_SECONDS, DURATION, GPU_SECONDS, LOST_LEASES, WAIT
from workers.telemetry import (
    Attributes,
    add_span,
    continued,
    current_traceparent,
    describe_span,
    span,
)

log = logging.getLogger("tuner.worker")

FAILED_STARTS = 2  # in a row, after which the worker is set aside
LOOK_EVERY_S = 60.0  # for engines that were installed or removed meanwhile
_PACKAGES = ("engine-tuner", "triton", "torch")


def describe(gpu: LocalGpu | None, devices: Sequence[str] | None, name: str) -> WorkerInfo:
    """This process as a worker. `name` tells it from the host's other workers."""
    host = socket.gethostname()
    full = f"{name}@{host}"
    return WorkerInfo(
        # A reboot gives out the same process ids again.
        id=f"{full}:{os.getpid()}:{secrets.token_hex(3)}",
        name=full,
        host=host,
        gpu=gpu.uuid if gpu else "",
        device=gpu.device if gpu else "",
        devices=tuple(devices) if devices is not None else None,
        engines=engines_here(),
        packages={one: version for one in _PACKAGES if (version := _version(one))},
    )


def engines_here() -> tuple[str, ...]:
    """The engines on this machine, as `sglang==0.5.16`; the one that `sglang` means comes first."""
    found: list[str] = []
    for name in engine_names():
        versions = {one.version for one in find_packages(name)}
        if versions:
            preferred = find_engine(name).version
            others = sorted(versions - {preferred}, key=version_order, reverse=True)
            found += [f"{name}=={version}" for version in (preferred, *others)]
    return tuple(found)


class Registration:
    """Keeps a worker's row up to date. Threads may share it."""

    def __init__(
        self,
        workers: WorkerStore,
        info: WorkerInfo,
        engines: Callable[[], tuple[str, ...]] = engines_here,
    ) -> None:
        self._workers = workers
        self._engines = engines
        self._look_at = time.monotonic() + LOOK_EVERY_S
        self._failed_starts = 0
        self.info = info

    def beat(self) -> None:
        """Say that the worker lives, and what it can do now. Raises UnusableStore."""
        if time.monotonic() >= self._look_at:
            self.info = self.info.with_engines(self._engines())
            self._look_at = time.monotonic() + LOOK_EVERY_S
        state = self._workers.beat(self.info)
        if state is WorkerState.ACTIVE and self._failed_starts >= FAILED_STARTS:
            log.info("%s was resumed", self.info.name)
            self._failed_starts = 0

    def started(self) -> None:
        """A job began to tune: whatever failed before is over."""
        self._failed_starts = 0

    def failed_to_start(self, reason: str) -> None:
        """A job could not begin to tune here. Raises UnusableStore."""
        self._failed_starts += 1
        if self._failed_starts >= FAILED_STARTS:
            self._workers.set_aside(self.info.id, reason)
            log.error("%s takes no more jobs: %s", self.info.name, reason)

    def stopped(self) -> None:
        """The worker ends. Raises UnusableStore."""
        self._workers.stopped(self.info.id)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


_WELL = ("done", "cancelled", "stale", "wait")


class Attempt:
    """An attempt that is under way."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease  # its trace continues at this attempt
        self.result: AttemptResult | None = None  # to be set when it has ended


@contextmanager
def observed(leases: Leases, lease: Lease) -> Iterator[Attempt]:
    """Count and time the attempt that the block makes, and make it a span of the job's trace."""
    figures = Figures(leases.database)
    device = lease.request.device
    about: Attributes = {
        "tuner.job.id": lease.job_id,
        "tuner.job.fence": lease.fence,
        "tuner.device": device,
        "tuner.worker": lease.owner,
    }
    with continued(lease.trace):
        times = _times(figures, lease)
        if lease.fence == 1 and times and times.started_at:
            WAIT.labels(device).observe(_seconds(times.created_at, times.started_at))
            add_span("queue", _ns(times.created_at), _ns(times.started_at), about)
        with span("attempt", about, "consumer"):
            attempt = Attempt(replace(lease, trace=current_traceparent()))
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
    if times and times.cost and outcome == JobState.DONE.value:
        _count_cost(lease.request, times.cost)
    ATTEMPTS.labels(device, outcome).inc()
    describe_span({"tuner.outcome": outcome}, "" if outcome in _WELL else result.reason or outcome)


def _count_cost(request: JobRequest, cost: Cost) -> None:
    GPU_SECONDS.labels(request.device, "busy").inc(cost.gpu_s - cost.gpu_idle_s)
    GPU_SECONDS.labels(request.device, "idle").inc(cost.gpu_idle_s)
    CPU_SECONDS.labels(request.device).inc(cost.cpu_s)


def _times(figures: Figures, lease: Lease) -> JobTimes | None:
    with suppress(UnusableStore):  # the figures of one job are not worth an attempt
        return figures.job_times(lease.job_id, lease.fence)
    return None


def _seconds(since: datetime, until: datetime) -> float:
    return max((until - since).total_seconds(), 0.0)


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1e6) * 1000


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
