"""Execute a tuning run, from the store's earlier results to the run's report.

Its times come from a GPU, a recording or a model of the device. Such a source has
`bench(prepared)`, which turns candidates into trials: it compiles each candidate, and measures it
if it fits the GPU. The source's `environment()` returns the fields of `Environment` that its times
depend on, and `backends` lists the installed kernel libraries beside Triton (None: unknown). The
source's processes belong to its workbench.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from tuner.compile import Farm, KernelCompiler
from tuner.engines.dispatch import Runs, what_runs
from tuner.engines.engine import triton_for
from tuner.engines.settings import settings_kept, settings_to_keep
from tuner.errors import UnwritableOutput
from tuner.measure import Measurer
from tuner.measure.gpu import GpuBench, child_env, open_gpu_bench
from tuner.measure.messages import find_routing_file
from tuner.measure.recording import Replay, check_recordable
from tuner.measure.workbench import Workbench
from tuner.problems.points import TRITON, Candidate, Point, Problem, ServerSettings
from tuner.problems.results import (
    Compiled,
    Entry,
    Environment,
    MeasureKind,
    Outlook,
    Run,
    RunKey,
    RunState,
    Status,
    Totals,
    Trial,
    Winner,
    untimed,
)
from tuner.tuning.gains import Meter, with_backends
from tuner.tuning.report import RunReport, mark_untested
from tuner.tuning.request import (
    Effort,
    KnownBefore,
    PreparedRun,
    Request,
    origin_of,
    refuse_unmeasured,
    triton_version,
)
from tuner.tuning.space import space_identity
from tuner.tuning.tune import UNWATCHED, RunGoal, Watcher, tune


class RunStore(Protocol):
    """The part of a store that a run needs."""

    def begin_run(self, key: RunKey) -> Run:
        """Return the run with that key: a new run, or a stopped run to resume."""

    def expect(self, run: Run, outlook: Outlook) -> None:
        """Tell watchers of the run which configurations it will try. Nothing depends on it."""

    def trials(self, run: Run) -> Sequence[Trial]: ...

    def add_trials(self, run: Run, new: Iterable[Trial]) -> None: ...

    def finish_run(self, run: Run, entries: Iterable[Entry], totals: Totals) -> None:
        """Publish the entries as winners, and close the run."""

    def winners_in(self, problem: Problem, environment: Environment) -> Sequence[Winner]:
        """Return everything that was published for a problem in an environment."""

    def stop_run(self, run: Run, state: RunState, reason: str = "") -> None: ...


def execute(
    prepared: PreparedRun,
    source: TimeSource,
    store: RunStore,
    watcher: Watcher = UNWATCHED,
    *,
    record: Path | None = None,
    add_to_record: bool = False,
) -> RunReport:
    """Tune, store the winners, and report. A stopped run is resumed.

    `record` is a file to write all measurements to. With `add_to_record`, measurements of other
    problems stay in the file. Raises UnwritableOutput if the recording cannot be written: either
    before any work, or after the run is done and its winners are stored.
    """
    request, meter = prepared.request, Meter()
    if record is not None:
        _check_recordable(prepared, record, add_to_record)

    watcher.step(source.opening)
    bench = source.bench(prepared)
    on_gpu = bench if isinstance(bench, GpuBench) else None
    environment = _environment(prepared, source)
    known = _known(prepared, source, store.winners_in(request.problem, environment))
    runs = runs_without_us(request)
    goal = _with_backends(prepared.goal(known), request.problem, runs, source.backends)
    strategy = prepared.strategy(known)

    run = store.begin_run(_run_key(prepared, source, environment))
    try:
        if source.compiler is not None:
            watcher.compiles(source.compiler)
        watcher.step("")
        store.expect(run, _outlook(prepared, goal))
        found = tune(
            goal,
            strategy,
            bench,
            [*store.trials(run), *_refused(goal, source.compiler)],
            partial(store.add_trials, run),
            watcher,
            race=on_gpu.race if on_gpu else None,
            tell=lambda chosen, trials: with_backends(
                _beside(prepared.kept, chosen), trials, runs, source.backends
            ),
        )
        watcher.step("storing the winners")
        server = _started(request, runs)
        entries = [
            replace(entry, server=server) for entry in mark_untested(found.entries, request.device)
        ]
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
    return RunReport(
        problem=request.problem,
        device=request.device,
        environment=environment,
        file_names=prepared.file_names,
        entries=[entry for entry in entries if entry.point in prepared.points],
        totals=bench.totals,
        table=prepared.table,
        runs=runs,
        mishaps=found.mishaps,
    )


def _refused(goal: RunGoal, compiler: KernelCompiler | None) -> list[Trial]:
    """Return trials of the shipped and stored configurations that the engine's kernel, as it is
    read here, does not take.

    These trials are not stored: another release of this program may take the configurations.
    """
    if compiler is None:  # a recording has the kernels that ran
        return []
    default = {Candidate(p, by_name["default"]) for p, by_name in goal.incumbents.items()}
    others = [c for c in goal.incumbent_candidates() if c.backend == TRITON and c not in default]
    whys = {candidate: compiler.refusal(candidate) for candidate in others}
    return [untimed(c, Compiled(Status.UNSUPPORTED, detail=why)) for c, why in whys.items() if why]


def _beside(kept: Sequence[Entry], chosen: Sequence[Entry]) -> Sequence[Entry]:
    """Add the entries of points where nothing was tried to the chosen entries, in their order."""
    return sorted([*kept, *chosen], key=lambda entry: entry.point) if kept else chosen


def runs_without_us(request: Request) -> Runs | None:
    """Return the kernels that the request's server runs by the engine's rules; None: unknown."""
    engine, flags = request.engine, settings_kept(request.server)
    return what_runs(engine.name, engine.version, request.problem, request.device, flags)


def _started(request: Request, runs: Runs | None) -> ServerSettings:
    """Return the request's server with the flags without which it would not start."""
    needs = runs.needs if runs else {}
    settings = {**settings_kept(request.server), **needs}
    return settings_to_keep(request.engine.name, request.problem, settings)


def _environment(prepared: PreparedRun, source: TimeSource) -> Environment:
    request = prepared.request
    return Environment(
        device=request.device.name,
        engine=request.engine.name,
        engine_version=request.engine.version,
        triton=triton_version(request.engine),
        kernel_hash=prepared.kernel_hash,
        **source.environment(),
    )


def _known(prepared: PreparedRun, source: TimeSource, winners: Sequence[Winner]) -> KnownBefore:
    """Return the results of the store and of the command's earlier runs.

    A prediction keeps no stored entry.
    """
    request, previous = prepared.request, {}
    if request.carry_over and request.source.kind is not MeasureKind.PREDICT:
        at = {w.entry.point: w.entry.config for w in winners if w.status is Status.OK}
        previous = {
            point: at[point]
            for point in prepared.points
            if point in at and prepared.spaces[point.part].legal(at[point])
        }
    return KnownBefore(previous, winners, source.workbench.chosen)


def _with_backends(
    goal: RunGoal, problem: Problem, runs: Runs | None, installed: Collection[str] | None
) -> RunGoal:
    """Add the other backends to the goal at its requested points: the backends that the engine may
    run, so that a missing backend is reported, and the backends in the GPU's environment.
    """
    if installed is None:
        return goal
    named = [kernel.backend for kernel in runs.kernels] if runs else []
    named = [name for name in named if name not in (TRITON, "none")]
    others = tuple(dict.fromkeys([*named, *installed]))
    whole = [point for point in goal.requested if point.part is problem.parts[0]]
    return replace(goal, backends=dict.fromkeys(whole, others))


def _run_key(prepared: PreparedRun, source: TimeSource, environment: Environment) -> RunKey:
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


def _outlook(prepared: PreparedRun, goal: RunGoal) -> Outlook:
    to_try = sum(prepared.tries.values())
    to_try += sum(len(names) for names in goal.backends.values())
    return Outlook(to_try, {p: goal.incumbents.get(p, {}) for p in goal.requested})


def _check_recordable(prepared: PreparedRun, path: Path, add: bool) -> None:
    check_recordable(path)
    replayed = prepared.request.source.recording
    if replayed is not None and replayed.resolve() == path.resolve():
        raise UnwritableOutput(f"{path} is being replayed: record to another file")
    if add and not prepared.shares_recordings:
        raise UnwritableOutput(f"{path}: a fused-MoE layer needs a recording to itself")


def _record(prepared: PreparedRun, path: Path, trials: Iterable[Trial], add: bool) -> None:
    tried = [trial for trial in trials if trial.candidate.backend == TRITON]
    try:
        origin = prepared.recording.origin if prepared.recording else origin_of(prepared.request)
        prepared.write_recording(path, prepared.request.problem, tried, add, origin)
    except UnwritableOutput as error:
        raise UnwritableOutput(
            f"{error}; the run is done and its winners are stored: run it again to record it"
        ) from None


# The three sources of times


class GpuTimes:
    """Times that are measured on a GPU. The process that owns the GPU starts at once."""

    opening = "starting the process that measures on the GPU"

    def __init__(self, request: Request, workbench: Workbench) -> None:
        self.workbench = workbench
        self.compiler: KernelCompiler | None = None
        self._request = request
        source = request.source
        self._routing = find_routing_file(source.routing) if source.routing else None
        # Of the captured routings that it measures with; mostly empty.
        self.routing_sha256 = self._routing.sha256 if self._routing else ""
        workbench.start(source.gpu, child_env(self._farm, source.gpu))

    def compile_ahead(self, prepared: PreparedRun) -> None:
        """Compile the first candidates of a run while other runs of the command are under way."""
        if prepared.compiles_ahead:
            known = KnownBefore(chosen=self.workbench.chosen)
            goal, compiler = prepared.goal(known), compiler_of(prepared, self._farm)
            refused = {trial.candidate for trial in _refused(goal, compiler)}
            first = [one for one in goal.incumbent_candidates() if one not in refused]
            compiler.compile_ahead([*first, *prepared.strategy(known).ask()])

    def bench(self, prepared: PreparedRun) -> GpuBench:
        """Open the bench. Raises MeasurerUnavailable, or BadInput for another kind of GPU."""
        request = self._request
        prepared.warm_up()  # the process still starts
        self.compiler = compiler_of(prepared, self._farm)
        self._bench = open_gpu_bench(
            self.compiler,
            self._farm,
            engine=f"{request.engine.name}=={request.engine.version}",
            problem=request.problem,
            device=request.device,
            gpu=request.source.gpu,
            routing=self._routing,
            points=prepared.points,
            workbench=self.workbench,
            thorough=request.effort is Effort.EXHAUSTIVE,
        )
        return self._bench

    def environment(self) -> dict[str, str]:
        return self._bench.environment

    @property
    def backends(self) -> Collection[str]:
        return self._bench.backends

    @property
    def _farm(self) -> Farm:
        # Leave one core to the process that owns the GPU.
        return self.workbench.farm(1, triton_for(self._request.engine))


class RecordedTimes:
    """Times of a recording, which needs neither a compiler nor a GPU."""

    opening = "reading the recording"
    compiler: KernelCompiler | None = None  # nothing is compiled
    backends: Collection[str] | None = None
    routing_sha256 = ""

    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench

    def bench(self, prepared: PreparedRun) -> SerialBench:
        assert prepared.recording is not None  # the request has one
        self._sha256 = prepared.recording.sha256
        replay = Replay(prepared.recording, prepared.request.device)
        return SerialBench(replay, replay, prepared.points)

    def environment(self) -> dict[str, str]:
        return {"driver": f"recording {self._sha256}"}


class PredictedTimes:
    """Times of compiled kernels by the family's model of the device."""

    opening = "choosing configurations to compile, by their predicted times"
    backends: Collection[str] | None = None
    routing_sha256 = ""

    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench
        self.compiler: KernelCompiler | None = None

    def bench(self, prepared: PreparedRun) -> SerialBench:
        farm = self.workbench.farm(0, triton_for(prepared.request.engine))
        self.compiler = compiler_of(prepared, farm)
        assert prepared.predictor is not None  # `prepare` refuses other requests
        return SerialBench(self.compiler, prepared.predictor, prepared.points)

    def environment(self) -> dict[str, str]:
        return {}


TimeSource = GpuTimes | RecordedTimes | PredictedTimes


def open_source(request: Request, workbench: Workbench) -> TimeSource:
    """Open the source of times that a request names.

    Raises BadInput for a GPU that this program does not measure on.
    """
    refuse_unmeasured(request.device, request.source.kind)
    if request.source.kind is MeasureKind.GPU:
        return GpuTimes(request, workbench)
    replay = request.source.kind is MeasureKind.REPLAY
    return RecordedTimes(workbench) if replay else PredictedTimes(workbench)


def compiler_of(prepared: PreparedRun, farm: Farm) -> KernelCompiler:
    """Return the compiler of a run's candidates."""
    request = prepared.request
    bind = prepared.kernels.binder(request.problem, request.device.target)
    return KernelCompiler(farm, bind, request.device, prepared.companions)


def own_launches(
    prepared: PreparedRun, workbench: Workbench
) -> list[tuple[str, Candidate, Compiled]]:
    """Compile the engine's configurations at each point of a file: return the configuration's name,
    "default" or "shipped", the candidate and the result.
    """
    named = {
        Candidate(point, config): name
        for point, configs in prepared.goal(KnownBefore()).incumbents.items()
        for name, config in configs.items()
    }
    found = compile_all(prepared, workbench, list(named))
    return [(name, candidate, found[candidate]) for candidate, name in named.items()]


def compile_all(
    prepared: PreparedRun, workbench: Workbench, candidates: Sequence[Candidate]
) -> dict[Candidate, Compiled]:
    """Compile candidates. Raises UnsupportedKernel for a candidate that the kernel does
    not take.
    """
    compiler = compiler_of(prepared, workbench.farm(0, triton_for(prepared.request.engine)))
    compiler.submit(candidates)
    found: dict[Candidate, Compiled] = {}
    while ready := compiler.poll(wait=True):
        found |= ready
    return found


class SerialBench:
    """A bench that measures in the caller's process while other processes compile."""

    def __init__(
        self,
        compiler: KernelCompiler | Replay,
        measurer: Measurer,
        points: Collection[Point] | None = None,
    ) -> None:
        """Take the points to measure (default: all). Candidates at other points are
        only compiled.
        """
        self._compiler = compiler
        self._measurer = measurer
        self._points = points
        self.totals = Totals()

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self._compiler.submit(candidates)

    def poll(self, wait: bool) -> list[Trial]:
        trials = [self._trial(*ready) for ready in self._compiler.poll(wait)]
        self.totals.configs_compiled = self._compiler.compiled_count
        self.totals.compile_s = self._compiler.compile_s
        return trials

    def _trial(self, candidate: Candidate, compiled: Compiled) -> Trial:
        if not compiled.ok or (self._points is not None and candidate.point not in self._points):
            return untimed(candidate, compiled)
        started = time.perf_counter()
        measurement = self._measurer.measure(candidate, compiled)
        self.totals.measure_s += time.perf_counter() - started
        self.totals.measurements += measurement.timed
        return Trial(candidate, compiled, measurement)
