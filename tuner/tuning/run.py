"""`execute`: a tuning run from the store's earlier results to its report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from tuner.engines.dispatch import Runs, of_class, what_runs
from tuner.errors import UnwritableOutput
from tuner.measure.gpu import GpuBench
from tuner.measure.recording import prove_recordable
from tuner.problems.points import TRITON, Problem
from tuner.problems.records import Outlook, Run, RunKey, RunState, Winner
from tuner.problems.results import Entry, Environment, MeasureKind, Status, Totals, Trial
from tuner.tuning.gains import Meter, with_backends
from tuner.tuning.prepare import Known, Prepared, triton_version
from tuner.tuning.report import Report, mark_untested
from tuner.tuning.request import Request
from tuner.tuning.sources import TimeSource
from tuner.tuning.space import space_identity
from tuner.tuning.tune import UNWATCHED, RunPlan, Watcher, tune


class RunStore(Protocol):
    """The part of a store that a run needs."""

    def begin_run(self, key: RunKey) -> Run:
        """The run with that key: a new one, or a stopped one to resume."""

    def expect(self, run: Run, outlook: Outlook) -> None:
        """Tell who follows the run what it will try. Nothing depends on it."""

    def trials(self, run: Run) -> Sequence[Trial]: ...

    def add_trials(self, run: Run, new: Iterable[Trial]) -> None: ...

    def finish_run(self, run: Run, entries: Iterable[Entry], totals: Totals) -> None:
        """Publish the entries as winners, and close the run."""

    def winners_in(self, problem: Problem, environment: Environment) -> Sequence[Winner]:
        """Everything published for a problem in an environment."""

    def stop_run(self, run: Run, state: RunState, reason: str = "") -> None: ...


def execute(
    prepared: Prepared,
    source: TimeSource,
    store: RunStore,
    watcher: Watcher = UNWATCHED,
    *,
    record: Path | None = None,
    add_to_record: bool = False,
) -> Report:
    """Tune, store the winners, and report. A stopped run is resumed.

    `record` is a file to write all measurements to. With `add_to_record`, measurements of other
    problems stay in it. Raises UnwritableOutput if the recording cannot be written: either before
    any work, or after the run is done and its winners are stored.
    """
    request, meter = prepared.request, Meter()
    if record is not None:
        _prove_recordable(prepared, record, add_to_record)

    watcher.step(source.opening)
    bench = source.bench(prepared)
    on_gpu = bench if isinstance(bench, GpuBench) else None
    environment = _environment(prepared, source)
    known = _known(prepared, source, store.winners_in(request.problem, environment))
    runs = runs_without_us(request)
    plan = _with_backends(prepared.plan(known), request.problem, runs, source.backends)
    strategy = prepared.strategy(known)

    run = store.begin_run(_run_key(prepared, source, environment))
    try:
        watcher.step("")
        store.expect(run, _outlook(prepared, plan))
        entries = tune(
            plan,
            strategy,
            bench,
            store.trials(run),
            partial(store.add_trials, run),
            watcher,
            racer=on_gpu,
            tell=lambda chosen, trials: with_backends(chosen, trials, runs, source.backends),
        )
        watcher.step("storing the winners")
        entries = mark_untested(entries, request.device)
        if source.compiler is not None:
            bench.totals.extra["kernels_cached"] = source.compiler.cached_count
        if on_gpu is not None:
            meter.count(bench.totals, on_gpu.busy_s, on_gpu.opened_at)
        store.finish_run(run, entries, bench.totals)
    except KeyboardInterrupt:
        store.stop_run(run, RunState.INTERRUPTED, "interrupted")
        raise
    except Exception as error:
        store.stop_run(run, RunState.FAILED, str(error))
        raise

    configs = {entry.point: entry.config for entry in entries}
    source.workbench.chosen.append((request.problem, configs))
    if record is not None:
        _record(prepared, record, store.trials(run), add_to_record)
    return Report(
        problem=request.problem,
        device=request.device,
        environment=environment,
        file_names=prepared.file_names,
        entries=[entry for entry in entries if entry.point in prepared.points],
        totals=bench.totals,
        table=prepared.table,
        runs=runs,
    )


def runs_without_us(request: Request) -> Runs | None:
    """What a server runs by the engine's rules, without any flags; None: nobody knows."""
    engine, flags = request.engine, of_class({}, request.architecture)
    return what_runs(engine.name, engine.version, request.problem, request.device, flags)


def _environment(prepared: Prepared, source: TimeSource) -> Environment:
    request = prepared.request
    return Environment(
        device=request.device.name,
        engine=request.engine.name,
        engine_version=request.engine.version,
        triton=triton_version(request.engine),
        kernel_hash=prepared.kernels.hash,
        **source.environment(),
    )


def _known(prepared: Prepared, source: TimeSource, winners: Sequence[Winner]) -> Known:
    """What the store and the command's earlier runs have. Predictions keep no stored entry."""
    request, previous = prepared.request, {}
    if request.carry_over and request.source.kind is not MeasureKind.PREDICT:
        at = {w.entry.point: w.entry.config for w in winners if w.status is Status.OK}
        previous = {
            point: at[point]
            for point in prepared.points
            if point in at and prepared.spaces[point.part].legal(at[point])
        }
    return Known(previous, winners, source.workbench.chosen)


def _with_backends(
    plan: RunPlan, problem: Problem, runs: Runs | None, installed: Collection[str] | None
) -> RunPlan:
    """The plan with the other backends at its requested points: those that the engine may run, so
    that a missing one is told, and those that the GPU's environment has.
    """
    if installed is None:
        return plan
    named = [kernel.backend for kernel in runs.kernels] if runs else []
    named = [name for name in named if name not in (TRITON, "none")]
    others = tuple(dict.fromkeys([*named, *installed]))
    whole = [point for point in plan.requested if point.part is problem.parts[0]]
    return replace(plan, backends=dict.fromkeys(whole, others))


def _run_key(prepared: Prepared, source: TimeSource, environment: Environment) -> RunKey:
    request = prepared.request
    return RunKey(
        problem=request.problem,
        environment=environment,
        measure=request.source.kind,
        effort=request.effort.value,
        seed=request.seed,
        points=prepared.points,
        space=space_identity(prepared.spaces),
        recording=prepared.recording.sha256 if prepared.recording else "",
        routing=source.routing_sha256,
    )


def _outlook(prepared: Prepared, plan: RunPlan) -> Outlook:
    to_try = sum(prepared.tries.values())
    to_try += sum(len(names) for names in plan.backends.values())
    return Outlook(to_try, {p: plan.incumbents.get(p, {}) for p in plan.requested})


def _prove_recordable(prepared: Prepared, path: Path, add: bool) -> None:
    """Raise UnwritableOutput if the recording cannot be written to `path`."""
    prove_recordable(path)
    replayed = prepared.request.source.recording
    if replayed is not None and replayed.resolve() == path.resolve():
        raise UnwritableOutput(f"{path} is being replayed: record to another file")
    if add and not prepared.shares_recordings:
        raise UnwritableOutput(f"{path}: a fused-MoE layer needs a recording to itself")


def _record(prepared: Prepared, path: Path, trials: Iterable[Trial], add: bool) -> None:
    tried = [trial for trial in trials if trial.candidate.backend == TRITON]
    try:
        prepared.write_recording(path, prepared.request.problem, tried, add)
    except UnwritableOutput as error:
        raise UnwritableOutput(
            f"{error}; the run is done and its winners are stored: run it again to record it"
        ) from None
