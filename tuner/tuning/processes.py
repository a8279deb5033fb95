"""What a run compiles and measures with, and on what. Processes start when they are needed."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Protocol

from tuner.compile import Farm, KernelCompiler
from tuner.compile.candidates import Binder, Companions
from tuner.compile.environment import TritonRelease, triton_for
from tuner.errors import CompilerUnavailable
from tuner.measure.gpu import GpuBench, child_env, open_gpu_bench
from tuner.measure.recording import RecordedTrials, read_trials
from tuner.measure.routing_file import RoutingFile, find_routing_file
from tuner.measure.workbench import Workbench
from tuner.problems.points import Point
from tuner.problems.results import Environment, MeasureKind
from tuner.tuning.request import Effort
from tuner.tuning.run_request import Request


class Kernels(Protocol):
    """An engine's kernels of one family."""

    @property
    def hash(self) -> str:
        """The kernels' identity in the store."""
        ...


class RunProcesses(ABC):
    """The processes, the source of times and the environment of one run."""

    points: tuple[Point, ...]  # the points to tune

    def __init__(self, request: Request) -> None:
        self.request = request
        self._resources = contextlib.ExitStack()
        self._shared: Workbench | None = None

    def share(self, workbench: Workbench) -> None:
        """Use the processes of a workbench, which outlive this run. Call it before `run`."""
        self._shared = workbench

    def _start_child(self) -> None:
        gpu = self.request.source.gpu
        self._workbench.start(gpu, child_env(self._farm, gpu))

    @cached_property
    def environment(self) -> Environment:
        request = self.request
        return Environment(
            device=request.device.name,
            engine=request.engine.name,
            engine_version=request.engine.version,
            triton=self._triton,
            kernel_hash=self._kernels.hash,
            **self._measured_on(),
        )

    # What each family implements

    @property
    @abstractmethod
    def _kernels(self) -> Kernels: ...

    @abstractmethod
    def _binder(self) -> Binder: ...

    def _companions(self) -> Companions | None:
        """The further kernels that a candidate launches besides the binder's."""
        return None

    # The source of times

    @cached_property
    def _recording(self) -> RecordedTrials | None:
        """The recording that is replayed; None where times are not recorded ones."""
        path = self.request.source.recording
        return read_trials(path, self.request.problem) if path else None

    @property
    def _recording_sha256(self) -> str:
        return self._recording.sha256 if self._recording else ""

    def _measured_on(self) -> dict[str, str]:
        if self._recording_sha256:
            return {"driver": f"recording {self._recording_sha256}"}
        return self._gpu.environment if self.request.source.kind is MeasureKind.GPU else {}

    @cached_property
    def _workbench(self) -> Workbench:
        return self._shared or self._resources.enter_context(Workbench())

    @cached_property
    def _farm(self) -> Farm:
        # Leave one core to the process that owns the GPU.
        spare = 1 if self.request.source.kind is MeasureKind.GPU else 0
        return self._workbench.farm(spare, self._release)

    @cached_property
    def _release(self) -> TritonRelease:
        return triton_for(self.request.engine)

    @cached_property
    def _compiler(self) -> KernelCompiler:
        return KernelCompiler(self._farm, self._binder(), self.request.device, self._companions())

    @cached_property
    def _gpu(self) -> GpuBench:
        request = self.request
        bench = open_gpu_bench(
            self._compiler,
            self._farm,
            engine=f"{request.engine.name}=={request.engine.version}",
            problem=request.problem,
            device=request.device,
            gpu=request.source.gpu,
            routing=self._routing,
            points=self.points,
            workbench=self._workbench,
            thorough=request.effort is Effort.EXHAUSTIVE,
        )
        self._resources.callback(bench.close)
        return bench

    @cached_property
    def _routing(self) -> RoutingFile | None:
        path = self.request.source.routing
        return find_routing_file(path) if path else None

    @cached_property
    def _triton(self) -> str:
        try:
            return self._release.version
        except CompilerUnavailable:
            return "none"  # a replay needs no triton; the compile farm raises without it
