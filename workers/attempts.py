"""What is seen of an attempt at a job: its figures, and its spans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime

from tuner.errors import UnusableStore
from tuner.jobs.job import Cost, JobRequest, JobState, Lease
from tuner.store import Leases
from tuner.store.figures import Figures, JobTimes
from workers.child import AttemptOutcome, AttemptResult
from workers.metrics import ATTEMPTS, CPU_SECONDS, DURATION, GPU_SECONDS, LOST_LEASES, WAIT
from workers.tracing import (
    Attributes,
    add_span,
    continued,
    current_traceparent,
    describe_span,
    span,
)

_WELL = ("done", "cancelled", "stale", "wait")


class Attempt:
    """An attempt that is under way."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease  # its trace continues at this attempt
        self.result: AttemptResult | None = None  # to be set when it has ended


@contextmanager
def observed(leases: Leases, lease: Lease) -> Iterator[Attempt]:
    """Count and time the attempt that the block makes, and make it a span of the job's trace."""
    figures = Figures.sharing(leases)
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
