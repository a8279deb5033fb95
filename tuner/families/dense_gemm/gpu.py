"""Measure the candidates of one dense GEMM on this process's GPU."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import triton

from tuner.compile.kernel import compile_kernel
from tuner.devices.target import Target
from tuner.engines.engine import find_engine
from tuner.families.dense_gemm.batch import WORST_ERROR, Batch, Batches
from tuner.families.dense_gemm.engine import GemmLaunch, gemm_engine
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.kernels.binding import Variant
from tuner.measure.messages import measurement_fields, read_point
from tuner.measure.this_gpu import last_cache_bytes, local_target
from tuner.measure.timing import BoundKernel, capture_chains, race, time_graph
from tuner.problems.points import Config, Point
from tuner.problems.results import Measurement, Status

Fields = dict[str, Any]
Loaded = tuple[list[GemmLaunch], list[BoundKernel]]


class GemmOnGpu:
    """Checks and times candidates. `tuner.measure.gpu_child` describes the requests."""

    def __init__(self, problem: DenseGemm, request: Fields) -> None:
        self._target = local_target()
        self._problem = problem
        self._kernels = gemm_engine(find_engine(request["engine"])).lift(self._target.backend)
        self._source = self._kernels.lifted.write(Path(request["lifted_dir"]))
        self._batches = Batches(problem, request["seed"], last_cache_bytes())
        largest = max(read_point(fields).batch_size for fields in request["points"])
        self.ready: Fields = {"needed_bytes": self._batches.needed_bytes(largest)}

    def measure(self, request: Fields) -> Fields:
        """Check one candidate, then time it."""
        point, config = read_point(request), Config(request["config"])
        batch = self._batches.at(point.batch_size)
        try:
            chains = batch.chains(*self._loaded(point, config))
            error = batch.error(chains[0])
        except triton.runtime.errors.OutOfResources as refusal:
            return measurement_fields(Measurement(Status.OUT_OF_RESOURCES, detail=str(refusal)))
        bound = WORST_ERROR[self._problem.dtype]
        if not error <= bound:
            detail = f"differs from the reference by {error:.3g}, bound {bound}"
            return measurement_fields(Measurement(Status.WRONG_RESULT, detail=detail))
        timed = time_graph(capture_chains(chains), request.get("best_us"), self._batches.push_out)
        return measurement_fields(replace(timed, detail=f"worst error {error:.2g}"))

    def race(self, request: Fields) -> Fields:
        """Time several candidates of one point in turn, at several places in memory."""
        point = read_point(request)
        loaded = [self._loaded(point, Config(fields)) for fields in request["configs"]]
        rounds = -(-request["rounds"] // 2)  # at each place
        samples = [
            self._race_at(batch, loaded, rounds) for batch in self._batches.places(point.batch_size)
        ]
        return {"measurements": [_raced(one) for one in zip(*samples, strict=True)]}

    def _race_at(self, batch: Batch, loaded: list[Loaded], rounds: int) -> list[list[float]]:
        chains = [batch.chains(*one) for one in loaded]  # their tensors must outlive the graphs
        graphs = [capture_chains(some) for some in chains]
        return race(graphs, rounds, self._batches.push_out)

    def _loaded(self, point: Point, config: Config) -> Loaded:
        launches = self._kernels.launches(self._problem, point.batch_size, config, self._target)
        kernels = [
            BoundKernel(
                _compiled(self._source, one.binding.variant(), self._target),
                one.binding,
                one.grid,
            )
            for one in launches
        ]
        return launches, kernels


def _raced(places: Sequence[Sequence[float]]) -> Fields:
    """One candidate's measurement, from its times at each place."""
    mean_us = statistics.fmean(statistics.median(some) for some in places)
    least_us = min(min(some) for some in places)
    replays = sum(len(some) for some in places)
    return measurement_fields(Measurement(Status.OK, mean_us, least_us, replays))


@lru_cache(maxsize=4096)  # the problems of a model share kernels, and the process stays the same
def _compiled(source: Path, variant: Variant, target: Target) -> Any:  # noqa: ANN401 (CompiledKernel)
    return compile_kernel(source, variant.as_json(), target)


def open_session(problem: DenseGemm, request: Fields) -> GemmOnGpu:
    return GemmOnGpu(problem, request)
