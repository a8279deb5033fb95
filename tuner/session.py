"""From a request to a report: puts the rooms' parts together for one tuning run."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType

from tuner.bench import Bench, SerialBench
from tuner.choose import MoeChooser, Policy
from tuner.compile import Farm, KernelCompiler
from tuner.devices import Device
from tuner.engines import Engine, ShippedFile
from tuner.errors import BadInput
from tuner.incumbents import incumbents
from tuner.kernels.fused_moe import FusedMoeKernels, lift_fused_moe
from tuner.measure.gpu import GpuBench, open_gpu_bench
from tuner.measure.predict import Predictor
from tuner.measure.recording import (
    Recording,
    prove_recordable,
    read_recording,
    write_recording,
)
from tuner.measure.replay import Replay
from tuner.problems import BATCH_SIZES, Candidate, Config, FusedMoe, Gemm, Part, Point
from tuner.report import Report
from tuner.results import Entry, Environment, MeasureKind, Totals
from tuner.search import Budget, Search, budget_for
from tuner.seeds import seeds_for
from tuner.space import Effort, Space, space_for
from tuner.store import RunJournal, RunKey, RunState, Store
from tuner.tune import Listed, Plan, Progress, Strategy, tune
from tuner.ways import Source

# A gain below the noise of its source is no gain. Recorded and predicted times repeat exactly.
NOISE = {MeasureKind.GPU: 0.004, MeasureKind.REPLAY: 0.0, MeasureKind.PREDICT: 0.0}
# Kernels compiled for a prediction: about 0.4 s each of one core.
PREDICT_KERNELS = {Effort.QUICK: 50, Effort.STANDARD: 90, Effort.EXHAUSTIVE: 1000}
FORESEEN = 4  # of a search's seeds at a point, those that the device model names
PREDICT_PER_BLOCK = 4  # of those, the most with one BLOCK_SIZE_M that are offered to a point


@dataclass(frozen=True)
class Request:
    """What to tune, for which card and engine, and how."""

    problem: FusedMoe
    device: Device
    engine: Engine
    source: Source
    batch_sizes: tuple[int, ...] | None = None  # None: the engine's own, or the recording's
    gemms: tuple[Gemm, ...] = FusedMoe.gemms
    effort: Effort = Effort.STANDARD
    wide: bool | None = None  # beyond the engine's own grid; None: where a GPU measures
    seed: int = 0


class Session:
    """One request, ready to run. Use it in a `with`: it may own processes.

    Raises BadInput, before any work, for what cannot be tuned as asked.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self._resources = contextlib.ExitStack()
        self._check_gemms()
        self.points  # a batch size that the recording lacks is refused here  # noqa: B018
        self.file_names = self._file_names()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._resources.close()

    def run(self, store: Store, progress: Progress, record: Path | None = None) -> Report:
        """Tune, store the winners, and report. A run that was stopped is gone on with.

        `record` is a file for the recording of all that was measured. Raises UnwritableOutput,
        before any work, where it cannot be made.
        """
        if record is not None:
            prove_recordable(record)
        bench, strategy = self._bench_and_strategy()
        run = store.begin_run(self._run_key())
        journal = RunJournal(store, run)
        racer = bench if isinstance(bench, GpuBench) else None
        try:
            entries = tune(self._plan(), strategy, bench, journal, progress, racer)
            store.finish_run(run, entries, bench.totals)
            if record is not None:
                write_recording(record, self.request.problem, journal.trials())
        except KeyboardInterrupt:
            store.stop_run(run, RunState.INTERRUPTED, "interrupted")
            raise
        except Exception as error:
            store.stop_run(run, RunState.FAILED, str(error))
            raise
        return self._report(entries, bench.totals)

    @cached_property
    def environment(self) -> Environment:
        request = self.request
        return Environment(
            device=request.device.name,
            engine=request.engine.name,
            engine_version=request.engine.version,
            triton=self._triton,
            kernel_hash=self._kernels.lifted.hash,
            **self._measured_on(),
        )

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """The points to tune."""
        request = self.request
        recorded = self._recording.points if self._recording else None
        known = sorted({p.batch_size for p in recorded}) if recorded else list(BATCH_SIZES)
        sizes = request.batch_sizes or known
        points = tuple(Point(size, gemm) for size in sorted(set(sizes)) for gemm in request.gemms)
        if self._recording:
            self._recording.check(request.problem, points, request.device)
        return points

    @cached_property
    def tries(self) -> dict[str, int]:
        """How many configurations each size may be tried with, all gemms together."""
        each = self._budget.per_point
        if self.request.source.kind is MeasureKind.PREDICT:
            blocks = len(self._spaces[self.points[0].gemm].axes["BLOCK_SIZE_M"])
            each = blocks * PREDICT_PER_BLOCK
        return {point.size: each * len(self.request.gemms) for point in self.points}

    # Parts

    @cached_property
    def _recording(self) -> Recording | None:
        path = self.request.source.recording
        return read_recording(path) if path else None

    @cached_property
    def _kernels(self) -> FusedMoeKernels:
        return lift_fused_moe(self.request.engine)

    def _measured_on(self) -> dict[str, str]:
        if self._recording:
            return {"driver": f"recording {self._recording.sha256}"}
        return self._gpu.environment if self.request.source.kind is MeasureKind.GPU else {}

    @cached_property
    def _farm(self) -> Farm:
        # The process that owns the GPU wants a core of its own.
        spare = self.request.source.kind is MeasureKind.GPU
        processes = max(1, (os.cpu_count() or 1) - spare)
        return self._resources.enter_context(Farm(processes))

    @cached_property
    def _compiler(self) -> KernelCompiler:
        device = self.request.device
        bind = self._kernels.binder(self.request.problem, device.arch)
        return KernelCompiler(self._farm, bind, device)

    @cached_property
    def _gpu(self) -> GpuBench:
        request = self.request
        bench = open_gpu_bench(
            self._compiler,
            self._farm,
            engine=f"{request.engine.name}=={request.engine.version}",
            problem=request.problem,
            device=request.device,
            gpus=request.source.gpus,
            routing=request.source.routing,
            points=self.points,
        )
        self._resources.callback(bench.close)
        return bench

    @cached_property
    def _triton(self) -> str:
        try:
            return version("triton")
        except PackageNotFoundError:
            return "none"  # a replay needs none; compiling refuses to start without one

    @cached_property
    def _spaces(self) -> dict[Part, Space]:
        request = self.request
        wide = request.wide
        if wide is None:
            measured = request.source.kind is MeasureKind.GPU
            wide = measured or request.effort is Effort.EXHAUSTIVE
        return {
            gemm: space_for(request.problem, request.device, gemm, wide=wide)
            for gemm in request.gemms
        }

    def _bench_and_strategy(self) -> tuple[Bench, Strategy]:
        request = self.request
        if self._recording:
            replay = Replay(self._recording)
            return SerialBench(replay, replay, self.points), self._search()
        if request.source.kind is MeasureKind.GPU:
            return self._gpu, self._search()
        predictor = Predictor(request.device, request.problem, self._corpus)
        legal = {point: self._spaces[point.gemm].configs() for point in self.points}
        one_config = not request.engine.has_down_files()
        chosen = predictor.shortlist_all(
            legal, PREDICT_KERNELS[request.effort], one_config=one_config
        )
        listed = [
            Candidate(point, config)
            for point, some in chosen.items()
            for config in _best_of_each_block(some)
        ]
        return SerialBench(self._compiler, predictor, self.points), Listed(listed)

    def _search(self) -> Strategy:
        request = self.request
        if request.effort is Effort.EXHAUSTIVE:  # nothing to learn from on the way
            return Listed(
                [
                    Candidate(point, config)
                    for point in self.points
                    for config in self._spaces[point.gemm].configs()
                ]
            )
        seeds = seeds_for(
            self.points,
            request.problem,
            request.device,
            self._spaces,
            self._corpus,
            known=self._known(),
            foreseen=self._foreseen(),
        )
        return Search(self._spaces, self.points, seeds, self._budget, request.seed)

    @cached_property
    def _budget(self) -> Budget:
        size = max(len(space) for space in self._spaces.values())
        return budget_for(self.request.effort, len(self.points), size)

    def _plan(self) -> Plan:
        policy = Policy(
            noise=NOISE[self.request.source.kind],
            one_config=not self.request.engine.has_down_files() and len(self.request.gemms) > 1,
            trust_shipped=self.request.source.kind is MeasureKind.PREDICT,
        )
        return Plan(
            requested=self.points,
            incumbents=self._incumbents,
            chooser=MoeChooser(self._incumbents, policy, {p.batch_size for p in self.points}),
        )

    @cached_property
    def _incumbents(self) -> Mapping[Point, Mapping[str, Config]]:
        request = self.request
        return incumbents(
            request.engine,
            request.problem,
            request.device,
            self._triton,
            request.gemms,
            [point.batch_size for point in self.points],
        )

    def _foreseen(self) -> dict[Point, list[Config]]:
        """What the device model ranks first on the engine's own grid, which it knows best."""
        request = self.request
        predictor = Predictor(request.device, request.problem, self._corpus)
        grids = {g: space_for(request.problem, request.device, g) for g in request.gemms}
        return {
            point: predictor.shortlist(point, grids[point.gemm].configs(), FORESEEN)
            for point in self.points
        }

    def _known(self) -> dict[Point, Sequence[Config]]:
        return {point: list(self._incumbents[point].values()) for point in self.points}

    @cached_property
    def _corpus(self) -> list[ShippedFile]:
        return list(self.request.engine.shipped())

    def _file_names(self) -> dict[Gemm, str]:
        request = self.request
        gemms = [g for g in request.gemms if g is Gemm.UP or request.engine.has_down_files()]
        return {
            gemm: request.engine.file_name(request.problem, request.device, gemm) for gemm in gemms
        }

    def _check_gemms(self) -> None:
        request = self.request
        if request.gemms == (Gemm.DOWN,) and not request.engine.has_down_files():
            engine = f"{request.engine.name} {request.engine.version}"
            raise BadInput(f"{engine} reads no _down files: tune up, or both")

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
            recording=self._recording.sha256 if self._recording else "",
        )

    def _report(self, entries: Sequence[Entry], totals: Totals) -> Report:
        return Report(
            problem=self.request.problem,
            device=self.request.device,
            environment=self.environment,
            file_names=self.file_names,
            entries=[e for e in entries if e.point in self.points],
            totals=totals,
        )


def _best_of_each_block(ranked: Sequence[Config]) -> list[Config]:
    """The first few of each BLOCK_SIZE_M: a pair of gemms has to share that value."""
    kept: dict[int, list[Config]] = {}
    for config in ranked:
        kept.setdefault(config["BLOCK_SIZE_M"], []).append(config)
    return [config for some in kept.values() for config in some[:PREDICT_PER_BLOCK]]


def space_identity(spaces: Mapping[Part, Space]) -> str:
    """sha256 of the configurations that may be tried: another grid is another run."""
    digest = hashlib.sha256()
    for part in sorted(spaces):
        digest.update(f"{part.value}\n".encode())
        digest.update("\n".join(config.key for config in spaces[part].configs()).encode())
    return digest.hexdigest()
