"""Run the problems of one command on several GPUs: each GPU has a process that tunes on it.

The problems that take longest are given away first. A process hears of its next problem while it
still has one, so that the first kernels of that problem are compiled meanwhile. All processes use
one folder of compile results. `tuner.cli.one_gpu` is the side of the processes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

from tuner.childprocess import ChildDied, ChildProcess
from tuner.cli.app import open_store, say
from tuner.cli.runs import not_tuned, print_objects
from tuner.errors import MeasurerFailed, TunerError
from tuner.jobs.job import JobRequest
from tuner.problems.results import Totals
from tuner.store.workers import Estimates
from tuner.tuning.gains import work_line
from tuner.tuning.request import Request, later_gpu_s

MODULE = "tuner.cli.one_gpu"
_POLL_S = 0.1
_INTERRUPT_S = 10.0  # for a process to store that its run was interrupted


@dataclass
class _Gpu:
    """A process that tunes on a GPU."""

    name: str
    process: ChildProcess
    told: list[int] = field(default_factory=list)  # the problems that it has, its present one first
    began_at: float = 0.0
    busy: bool = False  # it was told to run a problem, and has not answered


def run_side_by_side(requests: Sequence[Request], gpus: Sequence[str], as_json: bool) -> None:
    """Run requests on several GPUs, each on one of them, and print their reports.

    The first run that fails ends the others. Raises what it raised.
    """
    started = time.monotonic()
    with contextlib.closing(_Board(requests, gpus)) as board:
        for report in board.reports():
            if not as_json:  # what is done stays on the screen if a later problem fails
                typer.echo("\n" * (len(board.done) > 1) + report["text"])
    done = [board.done[at]["report"] for at in sorted(board.done)]
    totals = [Totals(**report["totals"]) for report in done]
    took_s = time.monotonic() - started
    say(f"{len(done)} problems on {len(gpus)} GPUs in {took_s:.1f} s, and added up over the GPUs:")
    say(work_line(totals))
    if as_json:
        print_objects(done)


class _Board:
    """Which process has which problem, and what was found."""

    def __init__(self, requests: Sequence[Request], gpus: Sequence[str]) -> None:
        self.done: dict[int, dict[str, Any]] = {}  # the last answer for each problem
        self._refused: list[TunerError] = []
        self._requests = requests
        self._seconds = _estimates(requests)
        self._waiting = sorted(range(len(requests)), key=lambda at: -self._seconds[at])
        self._gpus = [_Gpu(name, ChildProcess(MODULE, dict(os.environ))) for name in gpus]

    def reports(self) -> Iterator[dict[str, Any]]:
        """The runs' reports as they come."""
        for gpu in self._gpus:
            self._tell(gpu, run=False)
        for gpu in reversed(self._gpus):
            self._go_on(gpu)
        while busy := [gpu for gpu in self._gpus if gpu.busy]:
            for gpu in busy:
                answer = self._poll(gpu, _POLL_S / len(busy))
                if answer is not None and (report := self._take(gpu, answer)):
                    yield report
        if not self.done:
            raise self._refused[0]

    def close(self) -> None:
        """End the processes. Those that still tune get a moment to store that they were stopped."""
        busy = [gpu for gpu in self._gpus if gpu.busy]
        for gpu in busy:
            gpu.process.interrupt()
        until = time.monotonic() + _INTERRUPT_S
        for gpu in busy:
            with contextlib.suppress(ChildDied):
                while (left_s := until - time.monotonic()) > 0:
                    gpu.process.poll(left_s)
        for gpu in self._gpus:
            gpu.process.reap()

    def _poll(self, gpu: _Gpu, timeout_s: float) -> dict[str, Any] | None:
        try:
            return gpu.process.poll(timeout_s)
        except ChildDied as death:
            raise MeasurerFailed(f"the process that tunes on GPU {gpu.name}: {death}") from None

    def _take(self, gpu: _Gpu, answer: dict[str, Any]) -> dict[str, Any] | None:
        """Read an answer. Returns it if it is the report of a run."""
        if "said" in answer:
            say(f"GPU {gpu.name}: {answer['said']}")
        elif "failed" in answer:
            raise _error(answer["failed"])
        elif "refused" in answer:
            at, error = answer["at"], _error(answer["refused"])
            gpu.told.remove(at)
            self._refused.append(error)
            say(not_tuned(self._requests[at], error))
        elif "idle" in answer:
            self._go_on(gpu)
        elif "report" in answer:
            gpu.told.remove(answer["at"])
            self.done[answer["at"]] = answer
            self._go_on(gpu)
            return answer
        return None

    def _go_on(self, gpu: _Gpu) -> None:
        """Let an idle process begin its next run."""
        gpu.busy = False
        if not gpu.told:
            self._tell(gpu, run=False)
        if gpu.told:
            gpu.began_at, gpu.busy = time.monotonic(), True
            self._tell(gpu, run=True)

    def _tell(self, gpu: _Gpu, *, run: bool) -> None:
        """Tell a process of the next problem, if it is to have one, and whether to run the first
        of those that it has.
        """
        at = None
        if self._waiting and (not run or self._is_free_first(gpu)):
            at = self._waiting.pop(0)
            gpu.told.append(at)
        chosen = [configs for answer in self.done.values() for configs in answer["chosen"]]
        with contextlib.suppress(ChildDied):  # the next poll tells
            gpu.process.send(
                {
                    "at": at,
                    "request": None if at is None else self._as_json(self._requests[at], gpu),
                    "of": len(self._requests),
                    "beside": len(self._gpus),
                    "run": run,
                    "chosen": chosen,
                }
            )

    def _is_free_first(self, gpu: _Gpu) -> bool:
        """Whether the GPU will have done its problems before all others, by the estimates."""
        now = time.monotonic()
        return self._left_s(gpu, now) == min(self._left_s(one, now) for one in self._gpus)

    def _left_s(self, gpu: _Gpu, now: float) -> float:
        takes_s = sum(self._seconds[at] for at in gpu.told)
        return takes_s - (now - gpu.began_at if gpu.busy else 0.0)

    def _as_json(self, request: Request, gpu: _Gpu) -> dict[str, Any]:
        asked = JobRequest(
            problem=request.problem,
            device=request.device.name,
            engine=f"{request.engine.name}=={request.engine.version}",
            selection=request.selected,
            effort=request.effort,
            wide=request.wide,
            seed=request.seed,
            server=request.server,
        )
        return {**asked.as_json(), "carry_over": request.carry_over, "gpu": gpu.name}


def _estimates(requests: Sequence[Request]) -> list[float]:
    """How long each run will take, in seconds or, with an effort without an estimate, in points."""
    with open_store() as store:
        known = Estimates(store.database)
        points = [len(one.selected.points(one.problem)) for one in requests]
        alone = [
            known.gpu_s(one.problem, one.device.name, one.effort, count)
            for one, count in zip(requests, points, strict=True)
        ]
    triples = zip(requests, alone, points, strict=True)
    return [later_gpu_s(one.problem, s) if s is not None else count for one, s, count in triples]


def _error(said: dict[str, Any]) -> TunerError:
    """The error that a process told of."""
    error = TunerError(said["message"])
    error.exit_code = said["exit_code"]
    return error
