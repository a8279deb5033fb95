"""The three sources of times: a GPU, a recording, a model of the device.

A source's `bench(prepared)` turns candidates into trials: it compiles each candidate, and measures
it if it fits the GPU. Then `environment()` has the fields of `Environment` that its times depend
on, and `backends` the installed kernel libraries beside Triton; None: nobody knows. The processes
of a source are those of its workbench.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from tuner.compile import Compiler, Farm, KernelCompiler
from tuner.compile.environment import triton_for
from tuner.measure import Measurer
from tuner.measure.gpu import GpuBench, child_env, open_gpu_bench
from tuner.measure.messages import find_routing_file
from tuner.measure.recording import Replay
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Point
from tuner.problems.results import Compiled, MeasureKind, Totals, Trial, untimed
from tuner.tuning.prepare import Known, Prepared
from tuner.tuning.request import Effort, Request


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

    def compile_ahead(self, prepared: Prepared) -> None:
        """Compile what a run will try first, while other runs of a command are under way."""
        if prepared.compiles_ahead:
            known = Known(chosen=self.workbench.chosen)
            first = prepared.plan(known).incumbent_candidates()
            compiler_of(prepared, self._farm).compile_ahead(
                [*first, *prepared.strategy(known).ask()]
            )

    def bench(self, prepared: Prepared) -> GpuBench:
        """Raises MeasurerUnavailable, or BadInput for another kind of GPU."""
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

    def bench(self, prepared: Prepared) -> SerialBench:
        assert prepared.recording is not None  # the request has one
        self._sha256 = prepared.recording.sha256
        replay = Replay(prepared.recording)
        return SerialBench(replay, replay, prepared.points)

    def environment(self) -> dict[str, str]:
        return {"driver": f"recording {self._sha256}"}


class PredictedTimes:
    """Times by the family's model of the device, of kernels that are compiled."""

    opening = "choosing what is worth compiling, by the model of the GPU"
    backends: Collection[str] | None = None
    routing_sha256 = ""

    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench
        self.compiler: KernelCompiler | None = None

    def bench(self, prepared: Prepared) -> SerialBench:
        farm = self.workbench.farm(0, triton_for(prepared.request.engine))
        self.compiler = compiler_of(prepared, farm)
        return SerialBench(self.compiler, prepared.predictor, prepared.points)

    def environment(self) -> dict[str, str]:
        return {}


TimeSource = GpuTimes | RecordedTimes | PredictedTimes


def open_source(request: Request, workbench: Workbench) -> TimeSource:
    """The source of times that a request names."""
    if request.source.kind is MeasureKind.GPU:
        return GpuTimes(request, workbench)
    replay = request.source.kind is MeasureKind.REPLAY
    return RecordedTimes(workbench) if replay else PredictedTimes(workbench)


def compiler_of(prepared: Prepared, farm: Farm) -> KernelCompiler:
    """What compiles the kernels of a run's candidates."""
    request = prepared.request
    bind = prepared.kernels.binder(request.problem, request.device.target)
    return KernelCompiler(farm, bind, request.device, prepared.companions)


def own_launches(prepared: Prepared, workbench: Workbench) -> list[tuple[str, Candidate, Compiled]]:
    """Compile what the engine runs at each point that a file holds: the name of the configuration,
    "default" or "shipped", the candidate, and the result.
    """
    named = {
        Candidate(point, config): name
        for point, configs in prepared.plan(Known()).incumbents.items()
        for name, config in configs.items()
    }
    compiler = compiler_of(prepared, workbench.farm(0, triton_for(prepared.request.engine)))
    compiler.submit(named)
    found: dict[Candidate, Compiled] = {}
    while ready := compiler.poll(wait=True):
        found |= ready
    return [(name, candidate, found[candidate]) for candidate, name in named.items()]


class SerialBench:
    """Measures in the caller's process while compiles run in other processes."""

    def __init__(
        self, compiler: Compiler, measurer: Measurer, points: Collection[Point] | None = None
    ) -> None:
        """`points` are the points to measure (default: all); others are only compiled."""
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
