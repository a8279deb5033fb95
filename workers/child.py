"""The child that tunes, as the worker's parent process sees it."""

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
GPU_VARIABLE = "TUNER_GPU"  # the GPU that the child measures on, as CUDA names it
JOBS_A_CHILD = 200  # then a new one: what leaks, leaks no further


class AttemptOutcome(str, Enum):
    """How an attempt ended."""

    DONE = "done"  # its winners are published
    FAILED = "failed"  # every attempt would end so
    RETRY = "retry"
    ELSEWHERE = "elsewhere"  # the same, and this machine lacks what the job asks for
    WAIT = "wait"  # somebody else is at the same work
    STALE = "stale"  # the lease was lost on the way


@dataclass(frozen=True)
class AttemptResult:
    """An attempt's end, and the reason for it."""

    outcome: AttemptOutcome
    reason: str = ""

    def as_json(self) -> dict[str, str]:
        return {"outcome": self.outcome.value, "reason": self.reason}


class Runner:
    """Does jobs in a child process, one at a time. A job that measures has a child of its own."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._child: ChildProcess | None = None
        self._jobs_left = 0

    def start(self, lease: Lease) -> None:
        """Give the job to a child; a child that is dead says so in `poll`."""
        if self._child is None or lease.request.needs_gpu:
            self.kill()
            self._child = ChildProcess(MODULE, self._environ)
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
        """How the job ended, or None while it goes on."""
        assert self._child is not None
        try:
            answer: dict[str, Any] | None = self._child.poll(timeout_s)
        except ChildDied as death:
            self.kill()
            return AttemptResult(AttemptOutcome.RETRY, str(death))
        if answer is None or "ready" in answer:
            return None
        self._jobs_left -= 1
        if not self._jobs_left:
            self.kill()
        return AttemptResult(AttemptOutcome(answer["outcome"]), answer["reason"])

    def kill(self) -> None:
        """End the child and all it started, at once."""
        if self._child is not None:
            self._child.reap()
            self._child = None


def child_environ(gpu: str | None) -> dict[str, str]:
    """This process's environment, for a child that may use that GPU and no other."""
    if gpu is None:
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, GPU_VARIABLE: gpu}
