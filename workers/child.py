"""The worker's side of the child process that tunes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tuner.childprocess import ChildDied, ChildProcess
from tuner.jobs.job import Lease

MODULE = "workers.run_job"
GPU_VARIABLE = "TUNER_GPU"  # the GPU that the child measures on, by CUDA's name
JOBS_A_CHILD = 200  # then a new child takes over, which ends any leak


class AttemptOutcome(str, Enum):
    """How an attempt ended."""

    DONE = "done"  # its winners are published
    FAILED = "failed"  # every attempt would fail
    RETRY = "retry"  # another attempt may succeed
    REFUSED = "refused"  # nothing can be tuned here: the job is not to blame
    STORE_FAILED = "store failed"  # neither the job nor the worker is to blame
    WAIT = "wait"  # another worker is doing the same work
    STALE = "stale"  # the lease was lost


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended, and why."""

    outcome: AttemptOutcome
    reason: str = ""

    def as_json(self) -> dict[str, str]:
        return {"outcome": self.outcome.value, "reason": self.reason}


class Runner:
    """Does jobs in a child process, one at a time. A job that measures gets a new child."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._child: ChildProcess | None = None
        self._ready = False
        self._jobs_left = 0

    def start(self, lease: Lease) -> None:
        """Give the job to a child. If the child dies with it, `poll` tells."""
        if self._child is None or lease.request.needs_gpu or _died(self._child):
            self.kill()
            self._child, self._ready = ChildProcess(MODULE, self._environ), False
            self._jobs_left = 1 if lease.request.needs_gpu else JOBS_A_CHILD
        with contextlib.suppress(ChildDied):
            self._child.send(
                {
                    "job_id": lease.job_id,
                    "owner": lease.owner,
                    "fence": lease.fence,
                    "request": lease.request.as_json(),
                    "trace": lease.trace,
                }
            )

    def poll(self, timeout_s: float) -> AttemptResult | None:
        """How the job ended; None while it goes on. Waits up to `timeout_s` seconds."""
        assert self._child is not None
        try:
            answer: dict[str, Any] | None = self._child.poll(timeout_s)
        except ChildDied as death:
            self.kill()
            if not self._ready:
                reason = f"the tuning process did not start: {death}"
                return AttemptResult(AttemptOutcome.REFUSED, reason)
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


def _died(child: ChildProcess) -> bool:
    """Whether a child without a job has ended, which is no fault of the next job."""
    try:
        child.poll(0)
    except ChildDied:
        return True
    return False


def child_environ(gpu: str | None) -> dict[str, str]:
    """This process's environment for a child, which may use that GPU only; None: no GPU."""
    if gpu is None:
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, GPU_VARIABLE: gpu}
