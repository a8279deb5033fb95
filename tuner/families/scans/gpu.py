"""Measure the candidates of a chunked scan on this process's GPU.

A search times a kernel alone. A race times the whole chain with each finalist, and without the
kernel: the difference is the kernel's time beside the others, with the caches as they leave them. A
kernel that is a small part of its chain is raced alone, as noise of the others would hide it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from tuner.backends.registry import no_module
from tuner.engines.engine import find_engine
from tuner.families.scans.batch import ScanBatches, written
from tuner.families.scans.engine import ScanLaunch, scan_engine
from tuner.families.scans.scan import ScanProblem, scan_of
from tuner.kernels.values import launch_values
from tuner.measure.messages import measurement_fields, read_point
from tuner.measure.this_gpu import last_cache_bytes, local_target
from tuner.measure.timing import (
    BoundKernel,
    Chain,
    capture_chains,
    load,
    race,
    run_chain,
    time_graph,
)
from tuner.problems.points import TRITON, Config, Point
from tuner.problems.results import Measurement, Status

_CHECKS = 3  # of each candidate: a race of threads need not show at once
# A race is run again, so many times in all, if the rest of the chain takes other times after it:
# something else used the GPU.
_RACES, _STEADY = 3, 0.01
_SMALL = 0.05  # of the rest's time; a difference of less is mostly noise, as the rest varies by 1 %

Fields = dict[str, Any]
Loaded = list[tuple[BoundKernel, ScanLaunch]]


class ScanOnGpu:
    """Checks and times candidates. `tuner.measure.gpu_child` describes the requests."""

    def __init__(self, problem: ScanProblem, request: Fields) -> None:
        self._problem, self._target = problem, local_target()
        engine = find_engine(request["engine"])
        self._kernels = scan_engine(engine, problem.family).lift(self._target.platform)
        self._source = self._kernels.lifted.write(Path(request["lifted_dir"]))
        most = torch.cuda.mem_get_info()[0] // 2
        about = problem, self._kernels, request["seed"], last_cache_bytes(), most
        self._batches = ScanBatches(*about)
        self._best: dict[Point, tuple[float, Config]] = {}
        points = [read_point(fields) for fields in request["points"]]
        self.ready: Fields = {"needed_bytes": self._batches.needed_bytes(points)}

    def measure(self, request: Fields) -> Fields:
        """Check a candidate, then time it."""
        if (backend := request.get("backend", TRITON)) != TRITON:
            why = no_module(backend, self._problem.family)
            return measurement_fields(Measurement(Status.UNSUPPORTED, detail=why))
        point, config = read_point(request), Config(request["config"])
        try:
            loaded, names, error = self._checked(point, config)
        except triton.runtime.errors.OutOfResources as refusal:
            return measurement_fields(Measurement(Status.OUT_OF_RESOURCES, detail=str(refusal)))
        bound = scan_of(self._problem).worst_error[self._problem.dtype]
        if not error <= bound:
            detail = f"differs from the reference by {error:.3g}, bound {bound:.3g}"
            return measurement_fields(Measurement(Status.WRONG_RESULT, detail=detail))
        batch = self._batches.at(point)
        chains = [_chain(loaded, copy) for copy in batch.copies]
        with batch.restored(names):  # each run reads and writes other states
            timed = time_graph(capture_chains(chains), request["best_us"])
        self._note(point, config, timed.median_us)
        return measurement_fields(replace(timed, detail=f"worst error {error:.2g}"))

    def race(self, request: Fields) -> Fields:
        """Time several candidates of a point in turn, each within the chain."""
        point = read_point(request)
        configs = [Config(fields) for fields in request["configs"]]
        batch = self._batches.at(point)
        others = {part: self._beside(replace(point, part=part)) for part in self._problem.parts}

        def captured(own: Loaded) -> Any:  # noqa: ANN401  # Captured
            each = (own if part is point.part else others[part] for part in self._problem.parts)
            whole = [one for some in each for one in some]
            return capture_chains([_chain(whole, copy) for copy in batch.copies])

        graphs, rest = [captured(self._load(point, config)) for config in configs], captured([])
        for _ in range(_RACES):
            before, raced, after = (
                race(some, request["rounds"]) for some in ([rest], graphs, [rest])
            )
            rest_us = [statistics.median(samples) for samples in (*before, *after)]
            if max(rest_us) <= min(rest_us) * (1 + _STEADY):
                break
        rest_mean = statistics.mean(rest_us)
        own = [[us - rest_mean for us in samples] for samples in raced]
        if min(map(statistics.median, own)) < _SMALL * rest_mean:
            loaded = [self._load(point, config) for config in configs]
            alone = [capture_chains([_chain(one, copy) for copy in batch.copies]) for one in loaded]
            own = race(alone, request["rounds"])
        found = [
            Measurement(Status.OK, statistics.median(some), min(some), len(some)) for some in own
        ]
        batch.restore({*batch.expected})
        return {"measurements": [measurement_fields(one) for one in found]}

    def _checked(self, point: Point, config: Config) -> tuple[Loaded, set[str], float]:
        """Return a point's kernels, the names of tensors that they write, and their worst error of
        several runs.
        """
        loaded, batch = self._load(point, config), self._batches.at(point)
        names = written(self._problem, [launch for _, launch in loaded], point)
        errors = []
        with batch.restored(names):  # for the kernels that read it
            for _ in range(_CHECKS):
                batch.clear(names)
                run_chain(_chain(loaded, batch.copies[0]))
                errors.append(batch.error(names))
        return loaded, names, max(errors)

    def _note(self, point: Point, config: Config, us: float | None) -> None:
        if us is not None and us < self._best.get(point, (us + 1, config))[0]:
            self._best[point] = us, config

    def _beside(self, point: Point) -> Loaded:
        """Load another part of the chain: its best configuration so far, or the engine's."""
        if point in self._best:
            return self._load(point, self._best[point][1])
        about = self._problem, point.part, self._target
        own = self._kernels.constants(*about)
        return self._load(point, own or self._kernels.listed(*about)[-1])

    def _load(self, point: Point, config: Config) -> Loaded:
        launches = self._kernels.launches(self._problem, point, config, self._target)
        return [
            (load(self._source, launch.binding, launch.grid, self._target), launch)
            for launch in launches
        ]


open_session = ScanOnGpu


def _chain(loaded: Sequence[tuple[BoundKernel, ScanLaunch]], tensors: dict[str, Tensor]) -> Chain:
    return [(kernel, launch_values(launch.binding, tensors)) for kernel, launch in loaded]
