"""One attention problem on the measuring process's GPU."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton

from tuner.compile.kernel import compile_kernel
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.families.attention.batch import Batches, check
from tuner.families.attention.engine import attention_engine
from tuner.families.attention.problem import Attention, Phase, Stage
from tuner.measure.messages import measurement_fields, read_point
from tuner.measure.timing import BoundKernel, capture, race, time_graph
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point
from tuner.problems.results import Measurement, Status

# Largest |difference| / (|expected| + rms) of a right kernel: three times the worst seen over all
# outputs of all configurations on an H200 (0.011).
WORST_ERROR = {Dtype.BFLOAT16: 0.033, Dtype.FLOAT16: 0.01}
# Where the engine's own constants err by more (decode without groups multiplies in 16 bits:
# 0.035), another configuration may err as much, and by the order of its sums a little more.
OWN_ERROR = 1.25
ROUNDING = 0.1  # what errs by more is wrong, not rounded
LEAST = {"BLOCK_N": 16, "num_stages": 1}  # fits wherever anything does

Fields = dict[str, Any]


class AttentionOnGpu:
    """Checks and times candidates; see `tuner.measure.gpu_child` for the requests."""

    def __init__(self, problem: Attention, request: Fields) -> None:
        properties = torch.cuda.get_device_properties(0)
        self._target = cuda_target(properties.major, properties.minor)
        self._problem = problem
        self._kernels = attention_engine(find_engine(request["engine"])).lift(self._target.backend)
        lifted = self._kernels.lifted(self._problem.phase)
        self._source = lifted.write(Path(request["lifted_dir"]))
        self._batches = Batches(
            self._kernels,
            self._problem,
            request["seed"],
            properties.multi_processor_count,
            properties.L2_cache_size,
        )
        self._own_error: dict[Point, float] = {}  # of the engine's constants
        points = [read_point(fields) for fields in request["points"]]
        self.ready: Fields = {"needed_bytes": self._batches.needed_bytes(points)}

    def measure(self, request: Fields) -> Fields:
        """One candidate: check it, then time it."""
        point, config = read_point(request), Config(request["config"])
        try:
            kernel, error = self._checked(point, config)
        except triton.runtime.errors.OutOfResources as refusal:
            return measurement_fields(Measurement(Status.OUT_OF_RESOURCES, detail=str(refusal)))
        bound = self._bound(point)
        if not error <= bound:
            detail = f"differs from the reference by {error:.3g}, bound {bound:.3g}"
            return measurement_fields(Measurement(Status.WRONG_RESULT, detail=detail))
        graph = capture(kernel, self._batches.at(point).arguments(kernel))
        timed = time_graph(graph, request.get("best_us"))
        return measurement_fields(replace(timed, detail=f"worst error {error:.2g}"))

    def race(self, request: Fields) -> Fields:
        """Several candidates of one point, timed in turn."""
        point = read_point(request)
        batch = self._batches.at(point)
        kernels = [self._kernel(point, Config(fields)) for fields in request["configs"]]
        self._fill(point)
        graphs = [capture(kernel, batch.arguments(kernel)) for kernel in kernels]
        samples = race(graphs, request["rounds"])
        measurements = [
            measurement_fields(Measurement(Status.OK, statistics.median(s), min(s), len(s)))
            for s in samples
        ]
        return {"measurements": measurements}

    def _bound(self, point: Point) -> float:
        """The largest error that counts as rounding at a point."""
        if point not in self._own_error:
            try:
                _, own = self._checked(point, self._default(point))
            except triton.runtime.errors.OutOfResources:
                own = 0.0  # the engine itself cannot run here
            self._own_error[point] = own if own <= ROUNDING else 0.0
        return max(WORST_ERROR[self._problem.dtype], OWN_ERROR * self._own_error[point])

    def _checked(self, point: Point, config: Config) -> tuple[BoundKernel, float]:
        """The point's kernel and its worst error, beside the engine's kernels of other stages."""
        edge = self._batches.edges.point
        pairs = {}
        for stage in self._problem.parts:
            here = replace(point, part=stage)
            own = config if stage is point.part else self._companion(here)
            at_edge = self._kernel(replace(edge, part=stage), own)
            pairs[stage] = at_edge, self._kernel(here, own)
        assert isinstance(point.part, Stage)  # the problem is attention
        error = check(pairs, self._batches, self._batches.at(point))
        return pairs[point.part][1], error

    def _fill(self, point: Point) -> None:
        """The first stage's results, where a later stage is timed alone."""
        if self._problem.phase is Phase.DECODE:
            decode = replace(point, part=Stage.DECODE)
            self._checked(decode, self._companion(decode))

    def _default(self, point: Point) -> Config:
        return self._kernels.default_config(self._problem, point, self._target)

    def _companion(self, point: Point) -> Config:
        """What runs beside a candidate: the engine's own, or where that does not fit the least."""
        own = self._default(point)
        limit = triton.runtime.driver.active.utils.get_device_properties(0)["max_shared_mem"]
        if self._kernel(point, own).compiled.metadata.shared <= limit:
            return own
        return Config({**own, **{name: v for name, v in LEAST.items() if name in own}})

    def _kernel(self, point: Point, config: Config) -> BoundKernel:
        binding = self._kernels.bind(self._problem, point, config, self._target)
        compiled = compile_kernel(self._source, binding.variant().as_json(), self._target)
        grid = self._kernels.grid(self._problem, point, config, self._target)
        return BoundKernel(compiled, binding, grid)


def open_session(problem: Attention, request: Fields) -> AttentionOnGpu:
    return AttentionOnGpu(problem, request)
