"""Run the requests of a command one after the other, on the same processes, and print reports."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tuner.cli.app import open_store, print_json, say
from tuner.errors import CompilerUnavailable, TunerError
from tuner.shell import command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.cli.check_files import CheckResult
    from tuner.engines.engine import Engine
    from tuner.measure.workbench import Workbench
    from tuner.store.results import ResultStore
    from tuner.tuning.report import RunReport
    from tuner.tuning.request import PreparedRun, Request
    from tuner.tuning.run import TimeSource


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Name the work and its time so far, while the block runs."""
    from tuner.tuning.progress import LiveLine, duration

    started = time.monotonic()

    def text(width: int) -> str:
        return f"{what}, {duration(time.monotonic() - started)} so far"[:width]

    line = LiveLine(sys.stderr, text)
    try:
        yield
    finally:
        line.close()


def run_all(
    requests: Sequence[Request], record: Path | None, as_json: bool, cluster: Path | None = None
) -> None:
    """Run requests one after the other on the same processes, and print their reports.

    `cluster`: the file that asked for them, if they were not named.
    """
    from tuner.measure.workbench import Workbench
    from tuner.tuning.gains import work_line

    reports: list[RunReport] = []
    began = time.monotonic()
    name = " ".join({f"{one.engine.name} {one.engine.version}" for one in requests})
    with Workbench() as workbench:
        with waiting(f"reading the kernels of {name}"):
            runs = _opened(requests, workbench)
        # The first problem's run starts the recording; the others add to it.
        for at, run in enumerate(runs):
            heading = f"problem {at + 1} of {len(runs)}: " if len(runs) > 1 else ""
            later = sum(sum(one.tries.values()) for one, _ in runs[at + 1 :])
            report = run_here(*run, heading, record, add=at > 0, later=later, since=began)
            reports.append(report)
            if not as_json:  # what is done stays on the screen if a later problem fails
                typer.echo("\n" * (at > 0) + report_text(report, named=len(runs) > 1))
    if len(reports) > 1:
        totals = [report.totals for report in reports]
        predicted = all(report.predicted for report in reports)
        say(f"{len(totals)} problems: {work_line(totals, predicted=predicted)}")
    if as_json:
        print_reports(reports, as_json)
    elif requests:
        say(f"next: {_next_line(requests, cluster)}")


def _next_line(requests: Sequence[Request], cluster: Path | None) -> str:
    """Return the command that writes the files of tuned requests, or packs the cluster's files."""
    from tuner.problems.results import MeasureKind

    card, engine = requests[0].device, requests[0].engine
    words = ["--device", card.name, "--engine", f"{engine.name}=={engine.version}"]
    predicted = any(one.source.kind is MeasureKind.PREDICT for one in requests)
    words += ["--allow-predicted"] * predicted
    if cluster is not None:
        return command_line("tuner", "bundle", "--cluster", str(cluster), *words)
    problems = dict.fromkeys(one.problem.spec() for one in requests)
    words += [word for problem in problems for word in ("--problem", problem)]
    return command_line("tuner", "export", *words)


def opened(request: Request, workbench: Workbench) -> tuple[PreparedRun, TimeSource]:
    """Prepare a request's run and open its source of times. A GPU's process starts, and so do first
    compiles.
    """
    from tuner.tuning.request import prepare
    from tuner.tuning.run import GpuTimes, open_source

    prepared = prepare(request)
    source = open_source(request, workbench)
    if isinstance(source, GpuTimes):
        source.compile_ahead(prepared)
    return prepared, source


def _opened(
    requests: Sequence[Request], workbench: Workbench
) -> list[tuple[PreparedRun, TimeSource]]:
    """Prepare the runs of requests. A request that cannot be tuned does not end the others.

    Raises the first error if none can be tuned.
    """
    runs, errors = [], []
    for request in requests:
        try:
            runs.append(opened(request, workbench))
        except TunerError as error:
            errors.append((request, error))
    if errors and not runs:
        raise errors[0][1]
    for request, reason in errors:
        say(f"not tuned: {request.problem.spec()}: {reason}")
    return runs


def run_here(
    prepared: PreparedRun,
    source: TimeSource,
    heading: str = "",
    record: Path | None = None,
    *,
    add: bool = False,
    later: int = 0,
    since: float | None = None,
) -> RunReport:
    """Do a run in this process and tell of it on stderr, with `later` and `since` of `Progress`."""
    from tuner.tuning.progress import Progress
    from tuner.tuning.run import execute

    for part, name in prepared.file_names.items():
        say(f"{part.value}: {name}")
    for note in prepared.notes:
        say(note)
    with (
        open_store() as store,
        closing(Progress(sys.stderr, prepared.tries, heading, later, since)) as progress,
    ):
        _say_estimate(prepared, store)
        return execute(prepared, source, store, progress, record=record, add_to_record=add)


def _say_estimate(prepared: PreparedRun, store: ResultStore) -> None:
    """Say how much of a GPU the run will take, before it takes any."""
    from tuner.problems.results import MeasureKind
    from tuner.tuning.request import estimate_line

    request, device = prepared.request, prepared.request.device.name
    if request.source.kind is not MeasureKind.GPU:
        return
    from tuner.store.workers import Estimates

    estimates = Estimates(store.database)
    gpu_s = estimates.gpu_s(request.problem, device, request.effort, len(prepared.points))
    if gpu_s is not None:
        say(estimate_line(gpu_s, device))


def print_reports(reports: Sequence[RunReport | CheckResult], as_json: bool) -> None:
    """Print reports as one JSON object, or as texts."""
    if as_json:
        objects = [report.as_json() for report in reports]
        print_json(objects[0] if len(objects) == 1 else {"reports": objects})
    else:
        typer.echo("\n\n".join(report_text(report, named=len(reports) > 1) for report in reports))


def report_text(report: RunReport | CheckResult, *, named: bool) -> str:
    """Write a report as text; `named`: below its problem, if it has a problem."""
    problem = getattr(report, "problem", None)
    return f"{problem.spec()}\n{report.as_text()}" if named and problem else report.as_text()


def say_other_triton(engine: Engine) -> None:
    """Say so if kernels are compiled with another Triton than the engine's servers run."""
    from tuner.engines.engine import triton_for

    try:
        note = triton_for(engine).note
    except CompilerUnavailable:
        return  # a replay compiles nothing, and whatever compiles will say it
    if note:
        say(note)
