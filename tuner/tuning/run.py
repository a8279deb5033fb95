"""Tuning runs: the request, the store and the report that every family shares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from tuner.engines.dispatch import Runs, of_class, what_runs
from tuner.errors import UnwritableOutput
from tuner.measure.gpu import GpuBench
from tuner.measure.recording import write_trials
from tuner.measure.recording_file import prove_recordable
from tuner.measure.replay import Replay
from tuner.measure.workbench import Workbench
from tuner.problems.points import TRITON, Candidate, Config, Part, Point
from tuner.problems.records import Outlook, RunKey, RunState
from tuner.problems.registry import family_of
from tuner.problems.results import Compiled, Entry, MeasureKind, Status, Totals, Trial
from tuner.tuning import gains
from tuner.tuning.bench import Bench, SerialBench
from tuner.tuning.costs import Meter
from tuner.tuning.journal import RunStore
from tuner.tuning.processes import RunProcesses
from tuner.tuning.report import EntryTable, Report, mark_untested
from tuner.tuning.run_request import Request
from tuner.tuning.space import Space, space_identity
from tuner.tuning.tune import Progress, RunPlan, Strategy, Unwatched, Watcher, tune
from tuner.tuning.without_us import with_backends

# The noise of times, as a share: a smaller gain is no gain. Recorded times repeat exactly.
NOISE = {MeasureKind.GPU: gains.NOISE, MeasureKind.REPLAY: 0.0}
# Raced times this near count as equal. It is as far as two runs' choices may lie apart.
TIE = {MeasureKind.GPU: 0.003, MeasureKind.REPLAY: 0.0}
# What a run does before its first trial, which may take seconds.
_BEFORE = {
    MeasureKind.GPU: "starting the process that measures on the GPU",
    MeasureKind.REPLAY: "reading the recording",
    MeasureKind.PREDICT: "choosing what is worth compiling, by the model of the GPU",
}


class TuningRun(RunProcesses):
    """One request, ready to run. Use it in a `with`, because it may own processes.

    The constructor raises BadInput for a request that cannot be tuned.
    """

    table: EntryTable  # how the entries are printed
    file_names: Mapping[Part, str]  # names of the engine files that the winners are for

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._previous: Mapping[Point, Config] = {}  # what the store had when the run began

    @property
    def notes(self) -> Sequence[str]:
        """What users should know before the run."""
        return ()

    def __enter__(self) -> TuningRun:
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def start_early(self) -> None:
        """Start what takes long and can be done while other runs of a command are under way: the
        GPU's child, and the first compiles.
        """
        if self.request.source.kind is MeasureKind.GPU:
            self._start_child()
            self._compiler.compile_ahead(self._first_candidates())

    def _first_candidates(self) -> Sequence[Candidate]:
        """What `run` will try first, as far as it is known before anything is measured."""
        return ()

    def own_launches(self) -> list[tuple[str, Candidate, Compiled]]:
        """What the engine runs at each point that a file holds, compiled: the name of the
        configuration, "default" or "shipped", the candidate, and the result.
        """
        named = {
            Candidate(point, config): name
            for point, configs in self._plan().incumbents.items()
            for name, config in configs.items()
        }
        self._compiler.submit(named)
        found: dict[Candidate, Compiled] = {}
        while ready := self._compiler.poll(wait=True):
            found |= ready
        return [(name, one, found[one]) for one, name in named.items()]

    def run(
        self,
        store: RunStore,
        progress: Progress,
        record: Path | None = None,
        add_to_record: bool = False,
        watcher: Watcher | None = None,
    ) -> Report:
        """Tune, store the winners, and report. A stopped run is resumed.

        `record` is a file to write all measurements to. With `add_to_record`, measurements of
        other problems stay in it. Raises UnwritableOutput where the recording cannot be written:
        either before any work, or after the run is done and its winners are stored.
        """
        if record is not None:
            self._prove_recordable(record, add_to_record)
        watcher = watcher or Unwatched()
        meter = Meter()
        watcher.step(_BEFORE[self.request.source.kind])
        if self.request.source.kind is MeasureKind.GPU:
            self._start_child()
            self._prepare()
        self._look_up(store)
        bench, strategy = self._bench_and_strategy()
        run = store.begin_run(self._run_key())
        racer = bench if isinstance(bench, GpuBench) else None
        try:
            watcher.step("")
            plan = self._with_backends(self._plan())
            store.expect(run, self._outlook(plan))
            kept = store.trials(run), partial(store.add_trials, run)
            entries = tune(plan, strategy, bench, *kept, progress, racer, watcher, self._tell)
            watcher.step("storing the winners")
            entries = mark_untested(entries, self.request.device)
            self._count_cached(bench.totals)
            if isinstance(bench, GpuBench):
                meter.count(bench.totals, bench.busy_s, bench.opened_at)
            store.finish_run(run, entries, bench.totals)
            configs = {entry.point: entry.config for entry in entries}
            self._workbench.chosen.append((self.request.problem, configs))
        except KeyboardInterrupt:
            store.stop_run(run, RunState.INTERRUPTED, "interrupted")
            raise
        except Exception as error:
            store.stop_run(run, RunState.FAILED, str(error))
            raise
        if record is not None:
            tried = [one for one in store.trials(run) if one.candidate.backend == TRITON]
            self._record(record, tried, add_to_record)
        return self._report(entries, bench.totals)

    def _with_backends(self, plan: RunPlan) -> RunPlan:
        """The plan with the other backends at its requested points: those that the engine may run,
        so that a missing one is told, and those that the GPU's environment has.
        """
        if self._installed is None:
            return plan
        named = [kernel.backend for kernel in self._runs.kernels] if self._runs else []
        named = [name for name in named if name not in (TRITON, "none")]
        others = tuple(dict.fromkeys([*named, *self._installed]))
        first = self.request.problem.parts[0]
        whole = [point for point in plan.requested if point.part is first]
        return replace(plan, backends=dict.fromkeys(whole, others))

    @cached_property
    def _runs(self) -> Runs | None:
        """What a server runs by the engine's rules, without any flags."""
        engine, version = self.environment.engine, self.environment.engine_version
        asked = self.request
        flags = of_class({}, asked.architecture)
        return what_runs(engine, version, asked.problem, asked.device, flags)

    @property
    def _installed(self) -> Collection[str] | None:
        """The backends that the GPU's environment has; None without a GPU."""
        gpu = self.request.source.kind is MeasureKind.GPU
        return self._gpu.backends if gpu else None

    def _tell(self, entries: list[Entry], trials: Sequence[Trial]) -> list[Entry]:
        """The entries with what a server runs without this program, without any flags."""
        return with_backends(entries, trials, self._runs, self._installed)

    def _outlook(self, plan: RunPlan) -> Outlook:
        to_try = sum(self.tries.values())
        to_try += sum(len(names) for names in plan.backends.values())
        return Outlook(to_try, {p: plan.incumbents.get(p, {}) for p in plan.requested})

    def _count_cached(self, totals: Totals) -> None:
        if "_compiler" in self.__dict__:  # a replay compiles nothing
            totals.extra["kernels_cached"] = self._compiler.cached_count

    def _record(self, path: Path, trials: Sequence[Trial], add: bool) -> None:
        try:
            self._write_recording(path, trials, add)
        except UnwritableOutput as error:
            raise UnwritableOutput(
                f"{error}; the run is done and its winners are stored: run it again to record it"
            ) from None

    # What each family implements

    @property
    @abstractmethod
    def tries(self) -> dict[str, int]:
        """The number of configurations that may be tried at each size (`Point.size`)."""

    @property
    @abstractmethod
    def _spaces(self) -> Mapping[Part, Space]: ...

    @abstractmethod
    def _search(self) -> Strategy:
        """How configurations are tried whose times are measured or recorded."""

    @abstractmethod
    def _prediction(self) -> tuple[Bench, Strategy]:
        """What predicts times, and which configurations it is asked for."""

    @abstractmethod
    def _plan(self) -> RunPlan: ...

    # Parts that families share; some have reasons for others

    def _bench_and_strategy(self) -> tuple[Bench, Strategy]:
        if self._recording:
            replay = Replay(self._recording)
            return SerialBench(replay, replay, self.points), self._search()
        if self.request.source.kind is MeasureKind.GPU:
            return self._gpu, self._search()
        return self._prediction()

    def _predicting(self) -> Bench:
        """What predicts times, for any configurations."""
        return self._prediction()[0]

    def _prepare(self) -> None:  # noqa: B027  # most have little to do
        """Do what takes seconds of CPU before the search, while the GPU's child starts."""

    def _look_up(self, store: RunStore) -> None:
        """Read what a run needs to know of earlier ones, before any work."""
        if self.request.carry_over and self.request.source.kind is not MeasureKind.PREDICT:
            self._previous = self._stored(store)

    def _stored(self, store: RunStore) -> dict[Point, Config]:
        """The measured configurations of the points in this environment that may be chosen now."""
        stored = store.winners_in(self.request.problem, self.environment)
        at = {w.entry.point: w.entry.config for w in stored if w.status is Status.OK}
        return {p: at[p] for p in self.points if p in at and self._spaces[p.part].legal(at[p])}

    def _write_recording(self, path: Path, trials: Sequence[Trial], add: bool) -> None:
        write_trials(path, self.request.problem, trials, add)

    def _prove_recordable(self, path: Path, add: bool) -> None:
        """Raise UnwritableOutput where the recording cannot be written to `path`."""
        prove_recordable(path)
        replayed = self.request.source.recording
        if replayed is not None and replayed.resolve() == path.resolve():
            raise UnwritableOutput(f"{path} is being replayed: record to another file")

    def _run_key(self) -> RunKey:
        request = self.request
        return RunKey(
            problem=request.problem,
            environment=self.environment,
            measure=request.source.kind,
            effort=request.effort.value,
            seed=request.seed,
            points=self.points,
            space=space_identity(self._spaces),
            recording=self._recording_sha256,
            routing=self._routing.sha256 if self._routing else "",
        )

    def _report(self, entries: Sequence[Entry], totals: Totals) -> Report:
        return Report(
            problem=self.request.problem,
            device=self.request.device,
            environment=self.environment,
            file_names=self.file_names,
            entries=[e for e in entries if e.point in self.points],
            totals=totals,
            table=self.table,
            runs=self._runs,
        )


def open_run(request: Request, workbench: Workbench | None = None) -> TuningRun:
    """The run of a request. Raises BadInput for a request that cannot be tuned.

    With a workbench, the run uses its processes and leaves them running for the next run.
    """
    family = family_of(request.problem)
    run: TuningRun = family.module("tuning").open_run(request)
    if workbench is not None:
        run.share(workbench)
    return run
