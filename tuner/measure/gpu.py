"""Candidates -> trials on GPUs: compile processes feed the children that own the GPUs."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from tuner.compile import Compiler, Farm
from tuner.devices.table import Device
from tuner.errors import BadInput
from tuner.measure.gpu_worker import Lane, Limits, Ticket
from tuner.measure.messages import point_fields, read_measurement
from tuner.measure.routing_file import RoutingFile
from tuner.problems.points import Candidate, Config, Point, Problem
from tuner.problems.results import Measurement, Totals, Trial, untimed

LOOK_S = 0.01  # how long one look for results lasts while compiles are also awaited
RACE_LIMIT_S = 120.0
INPUT_SEED = 20  # of weights, activations and routings: the same for every run


class GpuBench:
    """A `Bench` on the GPUs of `lanes`; each point is measured on one of them, always the same."""

    def __init__(
        self,
        compiler: Compiler,
        lanes: Sequence[Lane],
        points: Collection[Point] | None = None,
    ) -> None:
        """`points` are those to take times of, all by default; elsewhere compiling is enough."""
        self._compiler = compiler
        self._points = points
        self._lanes = lanes
        self._lane_of: dict[Point, Lane] = {}
        self._compiling = 0
        self._first: float | None = None
        self.totals = Totals()

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self._compiling += len(candidates)
        self._compiler.submit(candidates)

    def poll(self, wait: bool) -> list[Trial]:
        done = self._step(wait)
        while wait and not done and self._busy:
            done = self._step(wait)
        self._count(done)
        return done

    def race(
        self, point: Point, configs: Sequence[Config], rounds: int
    ) -> dict[Config, Measurement]:
        """Times taken in turn, so that drift falls on all alike. Nothing else may be running."""
        answer = self._lane(point).ask(
            {
                "op": "race",
                **point_fields(point),
                "configs": [dict(config) for config in configs],
                "rounds": rounds,
            },
            RACE_LIMIT_S,
        )
        if answer is None and len(configs) == 1:
            return {}
        if answer is None:  # one of them cost the child; each alone shows which
            alone = (self.race(point, [config], rounds) for config in configs)
            return {config: time for some in alone for config, time in some.items()}
        self.totals.measurements += len(configs)
        return {
            config: read_measurement(fields)
            for config, fields in zip(configs, answer["measurements"], strict=True)
        }

    @property
    def environment(self) -> dict[str, str]:
        """What the times depend on besides the kernels: torch, CUDA and the driver."""
        ready = self._lanes[0].ready
        return {name: ready[name] for name in ("torch", "cuda", "driver")}

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()

    @property
    def _busy(self) -> bool:
        return self._compiling > 0 or not all(lane.idle for lane in self._lanes)

    def _step(self, wait: bool) -> list[Trial]:
        nothing_measuring = all(lane.idle for lane in self._lanes)
        compiled = self._compiler.poll(wait and nothing_measuring and self._compiling > 0)
        self._compiling -= len(compiled)
        done = []
        for candidate, result in compiled:
            if result.ok and (self._points is None or candidate.point in self._points):
                self._first = self._first or time.perf_counter()
                self._lane(candidate.point).put(Ticket(candidate, result))
            else:
                done.append(untimed(candidate, result))
        for lane in self._lanes:
            for ticket, measurement in lane.collect(LOOK_S if wait and not done else 0.0):
                done.append(Trial(ticket.candidate, ticket.compiled, measurement))
        return done

    def _lane(self, point: Point) -> Lane:
        if point not in self._lane_of:
            self._lane_of[point] = self._lanes[len(self._lane_of) % len(self._lanes)]
        return self._lane_of[point]

    def _count(self, done: Sequence[Trial]) -> None:
        totals = self.totals
        totals.measurements += sum(trial.measurement.timed for trial in done)
        totals.configs_compiled = self._compiler.compiled_count
        totals.compile_s = self._compiler.compile_s
        totals.measure_s = sum(lane.busy_s for lane in self._lanes)
        totals.extra["children_replaced"] = sum(lane.replaced for lane in self._lanes)
        if self._first is not None and done:
            totals.extra["measuring_phase_s"] = time.perf_counter() - self._first


def open_gpu_bench(
    compiler: Compiler,
    farm: Farm,
    *,
    engine: str,
    problem: Problem,
    device: Device,
    gpus: Sequence[str],
    routing: RoutingFile | None,
    points: Collection[Point],
    limits: Limits = Limits(),
) -> GpuBench:
    """A bench on the GPUs that CUDA calls `gpus`, with `engine` (name==version)'s kernels.

    `points` are those to take times of; elsewhere compiling is enough. `routing` is a file of a
    fused-MoE layer's captured routings.

    Raises MeasurerUnavailable where there is no such GPU, BadInput where it is another card
    than `device` or the routings are not ones of the problem, NotEnoughMemory where the largest
    point's tensors do not fit.
    """
    setup = {
        "engine": engine,
        "lifted_dir": str(farm.lifted_dir),
        "problem": problem.spec(),
        "routing": routing and {"path": str(routing.path), "sha256": routing.sha256},
        "seed": INPUT_SEED,
        "points": [point_fields(point) for point in points],
    }
    lanes: list[Lane] = []
    try:
        for gpu in gpus:
            # The compile processes' Triton cache, so that their kernels need only be loaded.
            lanes.append(Lane(setup, {**farm.env, "CUDA_VISIBLE_DEVICES": gpu}, limits))
            found = lanes[-1].ready["device"]
            if found != device.name:
                raise BadInput(f"GPU {gpu} is a {found}, not a {device.name}: name it in --device")
    except BaseException:
        for lane in lanes:
            lane.close()
        raise
    return GpuBench(compiler, lanes, points)
