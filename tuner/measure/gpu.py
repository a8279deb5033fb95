"""Candidates -> trials on GPUs: compile processes feed the children that own the GPUs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.compile import KernelCompiler
from tuner.measure.lane import Lane, Ticket
from tuner.problems import Candidate, Config, Point
from tuner.results import Measurement, Status, Totals, Trial

LOOK_S = 0.01  # how long one look for results lasts while compiles are also awaited
RACE_LIMIT_S = 120.0


class GpuBench:
    """A `Bench` on the GPUs of `lanes`; each point is measured on one of them, always the same."""

    def __init__(self, compiler: KernelCompiler, lanes: Sequence[Lane]) -> None:
        self._compiler = compiler
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
                "batch_size": point.batch_size,
                "gemm": point.gemm.value,
                "configs": [dict(config) for config in configs],
                "rounds": rounds,
            },
            RACE_LIMIT_S,
        )
        if answer is None:
            return {}
        self.totals.measurements += len(configs)
        return {
            config: Measurement(**{**fields, "status": Status(fields["status"])})
            for config, fields in zip(configs, answer["measurements"], strict=True)
        }

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
            if result.ok:
                self._first = self._first or time.perf_counter()
                self._lane(candidate.point).put(Ticket(candidate, result))
            else:
                failed = Measurement(result.status, detail=result.detail)
                done.append(Trial(candidate, result, failed))
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


def child_env(cache_env: Mapping[str, str], gpu: str) -> dict[str, Any]:
    """The compile processes' environment, seeing one GPU: the kernels they made are found there."""
    return {**cache_env, "CUDA_VISIBLE_DEVICES": gpu}
