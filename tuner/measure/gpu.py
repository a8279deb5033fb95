"""Turn candidates into trials on a GPU.

Compile processes feed the child process that owns the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from tuner.compile import Farm, KernelCompiler
from tuner.devices.table import Device
from tuner.errors import BadInput, MeasurerFailed, MeasurerUnavailable
from tuner.measure.gpu_worker import GpuWorker, PendingMeasurement
from tuner.measure.messages import RoutingFile, point_fields, read_measurement
from tuner.measure.workbench import Workbench
from tuner.problems.points import TRITON, Candidate, Point, Problem
from tuner.problems.results import Compiled, Measurement, Status, Totals, Trial, twice, untimed

POLL_S = 0.01  # wait for one worker's results while compiles are also awaited
INPUT_SEED = 20  # of weights, activations and routings: the same for every run


class _RaceFailed(Exception):
    """A race gave no times; the message says why."""


class GpuBench:
    """A `Bench` on a GPU."""

    def __init__(
        self, compiler: KernelCompiler, worker: GpuWorker, points: Collection[Point] | None = None
    ) -> None:
        """Take the points to measure (default: all). Candidates at other points are
        only compiled.
        """
        self._compiler = compiler
        self._points = points
        self._worker = worker
        self._compiling = 0
        self._first: float | None = None
        self._race_s = 0.0
        self.totals = Totals()

    def submit(self, candidates: Sequence[Candidate]) -> None:
        tuned = [candidate for candidate in candidates if candidate.backend == TRITON]
        self._compiling += len(tuned)
        self._compiler.submit(tuned)
        for candidate in candidates:
            if candidate.backend != TRITON:  # a library brings its kernels, or compiles them itself
                self._measure(candidate, Compiled(Status.OK, cached=True))

    def poll(self, wait: bool) -> list[Trial]:
        done = self._step(wait)
        while wait and not done and self._busy:
            done = self._step(wait)
        self._count(done)
        return done

    def race(self, candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, Measurement]:
        """Time candidates of one point in turn, so that drift affects all of them equally.

        A race that fails is run once more. If it fails again, each candidate is timed alone;
        candidates that fail then are CRASHED. The worker must be idle. Raises MeasurerFailed if
        there was no answer in time, twice.
        """
        for last in (False, True):
            try:
                return self._race(candidates, rounds)
            except _RaceFailed:
                pass
            except TimeoutError as late:
                if last:
                    raise MeasurerFailed(twice(Status.TIMED_OUT, str(late))) from None
        found: dict[Candidate, Measurement] = {}
        for one in candidates:
            try:
                found |= self._race([one], rounds)
            except (_RaceFailed, TimeoutError) as failure:
                found[one] = Measurement(Status.CRASHED, detail=f"in the race: {failure}")
        return found

    def _race(self, candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, Measurement]:
        """Run a race once. Raises _RaceFailed or TimeoutError."""
        started = time.perf_counter()
        point = candidates[0].point
        tuned = [c for c in candidates if c.backend == TRITON]
        others = [c for c in candidates if c.backend != TRITON]
        answer = self._worker.ask(
            {
                "op": "race",
                **point_fields(point),
                "configs": [dict(candidate.config) for candidate in tuned],
                "backends": [candidate.backend for candidate in others],
                "rounds": rounds,
            },
            self._worker.limits.race_s,
        )
        self._race_s += time.perf_counter() - started
        if "error" in answer:
            raise _RaceFailed(answer["error"])
        self.totals.measurements += len(candidates)
        return {
            candidate: read_measurement(fields)
            for candidate, fields in zip([*tuned, *others], answer["measurements"], strict=True)
        }

    @property
    def backends(self) -> dict[str, str]:
        """Return the version of each backend that can be tried for the problem, by name."""
        found: dict[str, str] = self._worker.ready["backends"]
        return found

    @property
    def opened_at(self) -> float | None:
        """Return when the GPU was opened, in seconds of `time.perf_counter`; None: it
        is not open.
        """
        return self._worker.opened_at

    @property
    def busy_s(self) -> float:
        """Return the seconds in which the GPU checked or timed something."""
        return self._worker.busy_s + self._race_s

    @property
    def environment(self) -> dict[str, str]:
        """Return the versions that times depend on besides the kernels: torch, CUDA, the driver,
        and the backends that come in packages of their own.
        """
        ready = self._worker.ready
        versions = {name: ready[name] for name in ("torch", "cuda", "driver")}
        return {**versions, "backends": ready["packages"]}

    @property
    def _busy(self) -> bool:
        return self._compiling > 0 or not self._worker.idle

    def _step(self, wait: bool) -> list[Trial]:
        compiled = self._compiler.poll(wait and self._worker.idle and self._compiling > 0)
        self._compiling -= len(compiled)
        done = []
        for candidate, result in compiled:
            if result.ok and (self._points is None or candidate.point in self._points):
                self._measure(candidate, result)
            else:
                done.append(untimed(candidate, result))
        for pending, measurement in self._worker.collect(POLL_S if wait and not done else 0.0):
            done.append(Trial(pending.candidate, pending.compiled, measurement))
            self.totals.measurements += measurement.timed
        return done

    def _measure(self, candidate: Candidate, compiled: Compiled) -> None:
        self._first = self._first or time.perf_counter()
        self._worker.put(PendingMeasurement(candidate, compiled))

    def _count(self, done: Sequence[Trial]) -> None:
        totals = self.totals
        totals.configs_compiled = self._compiler.compiled_count
        totals.compile_s = self._compiler.compile_s
        totals.measure_s = self._worker.busy_s
        totals.extra["children_replaced"] = self._worker.replaced
        if self._first is not None and done:
            totals.extra["measuring_phase_s"] = time.perf_counter() - self._first


def child_env(farm: Farm, gpu: str) -> dict[str, str]:
    """Return the environment of a GPU's child.

    With the Triton cache of the compile processes, the child only loads kernels.
    """
    # Without an order, CUDA puts the fastest kind first, and nvidia-smi does not.
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu}
    return {**farm.env, **order}


def open_gpu_bench(
    compiler: KernelCompiler,
    farm: Farm,
    *,
    engine: str,
    problem: Problem,
    device: Device,
    gpu: str,
    routing: RoutingFile | None,
    points: Collection[Point],
    workbench: Workbench,
    thorough: bool = False,
) -> GpuBench:
    """Open a bench on a GPU.

    `gpu` is CUDA's number or name of the GPU; `engine` is name==version; only `points` are
    measured, other points are only compiled. `routing` holds captured routings of a fused-MoE
    layer. The workbench owns the worker and closes it. `thorough`: every candidate is timed with
    all routings, because others take a recording for the truth.

    Raises MeasurerUnavailable if the GPU is missing, GpuInUse if another process measures on it,
    BadInput if it is not a `device` or the routings do not fit the problem, and NotEnoughMemory if
    the largest point's tensors do not fit.
    """
    setup = {
        "engine": engine,
        "lifted_dir": str(farm.lifted_dir),
        "problem": problem.spec(),
        "routing": routing and {"path": str(routing.path), "sha256": routing.sha256},
        "seed": INPUT_SEED,
        "thorough": thorough,
        "points": [point_fields(point) for point in points],
    }
    worker = workbench.worker(gpu, setup, child_env(farm, gpu))
    found = worker.ready["device"]
    if found != device.name:
        raise BadInput(f"GPU {gpu} is a {found}, not a {device.name}: name it in --device")
    _same_triton(worker.ready["triton"], farm)
    return GpuBench(compiler, worker, points)


def _same_triton(found: str, farm: Farm) -> None:
    """Refuse a child that would load other kernels than were compiled for it."""
    if found != farm.triton.version:
        raise MeasurerUnavailable(
            f"the measuring process has Triton {found}, and kernels were compiled with "
            f"{farm.triton.version}"
        )
