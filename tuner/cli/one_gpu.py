"""The process that tunes on one GPU, beside others: `python -m tuner.cli.one_gpu`.

Each message from `tuner.cli.side_by_side` may have a further problem, whose first kernels are then
compiled, and may say that the first of the problems at hand is to be tuned. The answers are what
was refused, what is to be said, and a report for each run.
"""

from __future__ import annotations

import contextlib
import io
import signal
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner.childprocess import ParentPipes, run_as_child
from tuner.cli.runs import opened, report_text, run_here
from tuner.errors import TunerError
from tuner.jobs.job import read_request
from tuner.measure.messages import point_fields, read_point
from tuner.measure.workbench import Workbench
from tuner.problems.points import Config, Point, Problem
from tuner.problems.registry import parse_problem
from tuner.problems.results import MeasureKind
from tuner.tuning.request import Prepared, Source
from tuner.tuning.run import TimeSource


def main() -> None:
    # A shell's background jobs, and all they start, ignore Ctrl-C until they are told otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parent = ParentPipes()
    parent.send({"ready": True})
    message = parent.receive()
    runs: deque[tuple[int, Prepared, TimeSource]] = deque()
    with Workbench(beside=message["beside"]) as workbench:
        while True:
            if message["request"] is not None:
                _open(message, workbench, runs, parent)
            if message["run"]:
                workbench.chosen[:] = _read_chosen(message["chosen"])
                _run(runs, message["of"], workbench, parent)
            message = parent.receive()


def _open(
    message: Mapping[str, Any],
    workbench: Workbench,
    runs: deque[tuple[int, Prepared, TimeSource]],
    parent: ParentPipes,
) -> None:
    asked = message["request"]
    try:
        request = read_request(asked).to_run(
            Source(MeasureKind.GPU, gpu=asked["gpu"]),
            carry_over=asked["carry_over"],
        )
        run = opened(request, workbench)
    except TunerError as error:
        parent.send({"at": message["at"], "refused": _error_fields(error)})
    else:
        runs.append((message["at"], *run))


def _run(
    runs: deque[tuple[int, Prepared, TimeSource]],
    of: int,
    workbench: Workbench,
    parent: ParentPipes,
) -> None:
    """Do the first run, and answer with its report."""
    if not runs:
        parent.send({"idle": True})
        return
    at, prepared, source = runs.popleft()
    before = len(workbench.chosen)
    try:
        with contextlib.redirect_stderr(_Messages(parent)):
            report = run_here(prepared, source, f"problem {at + 1} of {of}: ")
    except TunerError as error:
        parent.send({"failed": _error_fields(error)})
        return
    text, chosen = report_text(report, named=True), _chosen_fields(workbench.chosen[before:])
    parent.send({"at": at, "report": report.as_json(), "text": text, "chosen": chosen})


class _Messages(io.TextIOBase):
    """Sends to the parent what is printed, a message for each line."""

    encoding = "utf-8"  # or else click wraps it

    def __init__(self, parent: ParentPipes) -> None:
        self._parent, self._rest = parent, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._parent.send({"said": line})
        return len(text)


def _error_fields(error: TunerError) -> dict[str, Any]:
    return {"message": str(error), "exit_code": error.exit_code}


def _chosen_fields(chosen: Iterable[tuple[Problem, Mapping[Point, Config]]]) -> list[Any]:
    return [
        [problem.spec(), [[point_fields(point), dict(config)] for point, config in configs.items()]]
        for problem, configs in chosen
    ]


def _read_chosen(values: Sequence[Any]) -> list[tuple[Problem, Mapping[Point, Config]]]:
    return [
        (parse_problem(spec), {read_point(point): Config(config) for point, config in configs})
        for spec, configs in values
    ]


if __name__ == "__main__":
    run_as_child(main)
