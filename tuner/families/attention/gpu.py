"""Measure the candidates of an attention problem on this process's GPU."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton

from tuner.engines.engine import find_engine
from tuner.families.attention.batch import (
    AttentionBatch,
    AttentionBatches,
    Library,
    check,
    check_library,
)
from tuner.families.attention.engine import attention_engine, engine_config
from tuner.families.attention.problem import Attention, AttentionPart, AttentionPhase
from tuner.families.attention.splits import BOTH, MOST, launched
from tuner.measure.library_calls import backend_of, chains_of, measured
from tuner.measure.messages import measurement_fields, read_point
from tuner.measure.this_gpu import last_cache_bytes, local_target
from tuner.measure.timing import BoundKernel, capture, capture_chains, load, race, time_graph
from tuner.problems.dtypes import Dtype
from tuner.problems.points import TRITON, Config, Point
from tuner.problems.results import Measurement, Status

# The largest |difference| / (|expected| + rms) of a correct kernel: three times the worst error
# over all outputs of all configurations on an H200 (0.011).
WORST_ERROR = {Dtype.BFLOAT16: 0.033, Dtype.FLOAT16: 0.01}
# The engine's own constants may err by more (0.035 in decode without groups, which multiplies in
# 16 bits). Other configurations may then err by this factor more, as they sum in another order.
DEFAULT_ERROR_FACTOR = 1.25
ROUNDING = 0.1  # a larger error is not due to rounding
LEAST = {"BLOCK_N": 16, "num_stages": 1}  # needs the least shared memory

Fields = dict[str, Any]


class AttentionOnGpu:
    """Checks and times candidates. `tuner.measure.gpu_child` describes the requests."""

    def __init__(self, problem: Attention, request: Fields) -> None:
        properties = torch.cuda.get_device_properties(0)
        self._target = local_target()
        triton_gpu = triton.runtime.driver.active.utils.get_device_properties(0)
        self._shared_bytes = triton_gpu["max_shared_mem"]  # it takes a millisecond to ask
        self._problem = problem
        engine = attention_engine(find_engine(request["engine"]))
        self._kernels = engine.lift(self._target.platform)
        self._engines_splits = engine.most_splits(problem, properties.multi_processor_count)
        lifted = self._kernels.lifted(self._problem.phase)
        self._source = lifted.write(Path(request["lifted_dir"]))
        self._batches = AttentionBatches(
            self._kernels,
            self._problem,
            max(MOST, self._engines_splits) if problem.chooses_splits else problem.most_splits,
            request["seed"],
            properties.multi_processor_count,
            last_cache_bytes(),
        )
        self._default_error: dict[Point, float] = {}  # of the engine's constants
        points = [read_point(fields) for fields in request["points"]]
        self.ready: Fields = {"needed_bytes": self._batches.needed_bytes(points)}

    def measure(self, request: Fields) -> Fields:
        """Check a candidate, then time it."""
        point, config = read_point(request), Config(request["config"])
        if request.get("backend", TRITON) != TRITON:
            return measurement_fields(self._measure_library(point, request["backend"]))
        try:
            kernel, error = self._checked(point, config)
        except triton.runtime.errors.OutOfResources as refusal:
            return measurement_fields(Measurement(Status.OUT_OF_RESOURCES, detail=str(refusal)))
        bound = self._bound(point)
        if not error <= bound:
            detail = f"differs from the reference by {error:.3g}, bound {bound:.3g}"
            return measurement_fields(Measurement(Status.WRONG_RESULT, detail=detail))
        batch = self._batches.at(point)
        graph = capture(kernel, batch.arguments(kernel, config))
        timed = time_graph(graph, request["best_us"], batch.before(point.part))
        return measurement_fields(replace(timed, detail=f"worst error {error:.2g}"))

    def race(self, request: Fields) -> Fields:
        """Time several candidates of a point in turn."""
        point = read_point(request)
        batch = self._batches.at(point)
        configs = [Config(fields) for fields in request["configs"]]
        for config in configs:
            self._fill(point, config)
        kernels = ((self._kernel(point, config), config) for config in configs)
        graphs = [capture(kernel, batch.arguments(kernel, config)) for kernel, config in kernels]
        for name in request.get("backends", []):
            graphs.append(capture_chains(chains_of(batch.calls(self._library(name)))))
        samples = race(graphs, request["rounds"], batch.before(point.part))
        measurements = [
            measurement_fields(Measurement(Status.OK, statistics.median(s), min(s), len(s)))
            for s in samples
        ]
        return {"measurements": measurements}

    def _measure_library(self, point: Point, name: str) -> Measurement:
        """Check another backend, then time it. At decode, its time is the time of both kernels."""
        found: list[AttentionBatch] = []

        def error() -> float:
            found.append(self._batches.at(point))
            return check_library(self._library(name), self._batches, found[0])

        return measured(
            lambda: found[0].calls(self._library(name)),
            error,
            WORST_ERROR[self._problem.dtype],
            self._batches.at(point).before(point.part),
        )

    def _library(self, name: str) -> Library:
        library: Library = backend_of(name, self._problem.family).module().attention
        return library

    def _bound(self, point: Point) -> float:
        """Return the largest error that counts as rounding at a point."""
        if point not in self._default_error:
            try:
                _, error = self._checked(point, self._default(point))
            except triton.runtime.errors.OutOfResources:
                error = 0.0  # the engine itself cannot run here
            self._default_error[point] = error if error <= ROUNDING else 0.0
        return max(
            WORST_ERROR[self._problem.dtype], DEFAULT_ERROR_FACTOR * self._default_error[point]
        )

    def _checked(self, point: Point, config: Config) -> tuple[BoundKernel, float]:
        """Return the point's kernel and its worst error, beside the engine's kernels of other
        parts.
        """
        edge = self._batches.edges.point
        pairs = {}
        for part in self._problem.parts:
            here = replace(point, part=part)
            used = config if part is point.part else self._companion(here, config)
            at_edge = self._kernel(replace(edge, part=part), used)
            pairs[part] = at_edge, self._kernel(here, used)
        assert isinstance(point.part, AttentionPart)  # the problem is attention
        error = check(pairs, self._batches, self._batches.at(point), config)
        return pairs[point.part][1], error

    def _fill(self, point: Point, config: Config) -> None:
        """Run decode's first kernel, because the second reads its results."""
        if self._problem.phase is AttentionPhase.DECODE:
            decode = replace(point, part=AttentionPart.DECODE)
            self._checked(decode, self._companion(decode, config))

    def _default(self, point: Point) -> Config:
        own = self._kernels, self._problem, point, self._target
        return engine_config(*own, self._engines_splits)

    def _companion(self, point: Point, beside: Config) -> Config:
        """Return the configuration of another part: the engine's, or a smaller one if it does not
        fit.

        The configuration has the same splits as `beside`.
        """
        splits = {name: beside[name] for name in BOTH if name in beside}
        default = self._default(point).replace(**splits)
        if self._kernel(point, default).compiled.metadata.shared <= self._shared_bytes:
            return default
        return Config({**default, **{name: v for name, v in LEAST.items() if name in default}})

    def _kernel(self, point: Point, config: Config) -> BoundKernel:
        problem, constants = launched(self._problem, config)
        binding = self._kernels.bind(problem, point, constants, self._target)
        grid = self._kernels.grid(problem, point, constants, self._target)
        return load(self._source, binding, grid, self._target)


open_session = AttentionOnGpu
