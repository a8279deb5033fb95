"""Measure the candidates of a fused-MoE layer on this process's GPU.

Routings are random, or captured from a running engine: top-k expert ids, a row for each token.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from tuner.engines.engine import find_engine
from tuner.errors import BadInput
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.inputs import ELSEWHERE, grid_size
from tuner.families.fused_moe.layer import WORST_ERROR, Layer, check, copy_bytes_per_us, padding_us
from tuner.families.fused_moe.problem import FusedMoe, gemm_of
from tuner.measure.messages import RoutingFile, measurement_fields, read_point
from tuner.measure.this_gpu import last_cache_bytes, local_target
from tuner.measure.timing import BoundKernel, capture, is_slower, load, race, time_graph
from tuner.problems.points import TRITON, Config, Point
from tuner.problems.results import UNCHECKED, Measurement, Status

Fields = dict[str, Any]

# A launch that reads its weights for so many microseconds averages over much by itself: a graph of
# it needs few launches. On recordings of two layers, times that are off by 1 % cost a search 0.03 %
# at most, and a race times its finalists with all routings.
LONG_US, FEW = 100.0, 4


class MoeOnGpu:
    """Checks and times candidates. `tuner.measure.gpu_child` describes the requests."""

    def __init__(self, problem: FusedMoe, request: Fields) -> None:
        self._target = local_target()
        self._kernels = moe_engine(find_engine(request["engine"])).lift(self._target.platform)
        self._source = self._kernels.lifted.write(Path(request["lifted_dir"]))
        captured = _captured(request["routing"], problem) if request["routing"] else None
        self._layer = Layer(
            problem,
            request["seed"],
            last_cache_bytes(),
            captured,
            foreign_blocks=self._kernels.foreign_blocks,
            free_bytes=torch.cuda.mem_get_info()[0],
        )
        self._copy_rate = copy_bytes_per_us()
        self._thorough = request["thorough"]
        self._errors: dict[tuple[Point, Config], float] = {}  # the worst of each compared candidate
        points = [read_point(fields) for fields in request["points"]]
        self.ready: Fields = {"needed_bytes": self._layer.reserve(points)}

    def measure(self, request: Fields) -> Fields:
        """Time a candidate, then compare its outputs, unless it is surely slower than the best.

        Most candidates are slower, and a slower candidate is not chosen. In exhaustive runs the
        outputs of all candidates are compared, because others take a recording for the truth.
        """
        if request.get("backend", TRITON) != TRITON:
            detail = "only Triton's kernel can run a single gemm of a layer"
            return _answer(Measurement(Status.UNSUPPORTED, detail=detail))
        point, config = read_point(request), Config(request["config"])
        inputs = self._layer.inputs(point)
        try:
            kernel = self._kernel(point, config)
            launches = sampled = inputs.launches(kernel, config)
            if not self._thorough and inputs.read_bytes / self._copy_rate > LONG_US:
                sampled = spread_evenly(launches, FEW)
            graph = capture(kernel, sampled, least=len(sampled))
        except triton.runtime.errors.OutOfResources as refusal:
            return _answer(Measurement(Status.OUT_OF_RESOURCES, detail=str(refusal)))
        extra_us = padding_us(inputs, config, self._copy_rate)
        best_us = request["best_us"] and request["best_us"] - extra_us
        timed = time_graph(graph, best_us, inputs.cold.push_out)
        if not self._thorough and timed.min_us is not None and is_slower(timed.min_us, best_us):
            return _answer(replace(timed, detail=UNCHECKED), extra_us)
        wrong = self._compare(point, config, kernel, launches)
        if wrong is not None:
            return _answer(wrong)
        detail = f"worst error {self._errors[point, config]:.2g}"
        return _answer(replace(timed, detail=detail), extra_us)

    def race(self, request: Fields) -> Fields:
        """Time several candidates of a point in turn. Candidates that were not compared yet are
        compared.
        """
        point = read_point(request)
        inputs = self._layer.inputs(point)
        configs = [Config(fields) for fields in request["configs"]]
        graphs, wrong = [], []
        for config in configs:
            kernel = self._kernel(point, config)
            launches = inputs.launches(kernel, config)
            wrong.append(self._compare(point, config, kernel, launches))
            graphs.append(capture(kernel, launches, least=len(launches)))
        samples = race(graphs, request["rounds"], inputs.cold.push_out)
        return {
            "measurements": [
                _answer(
                    differs or Measurement(Status.OK, statistics.median(s), min(s), len(s)),
                    padding_us(inputs, config, self._copy_rate),
                )
                for s, config, differs in zip(samples, configs, wrong, strict=True)
            ]
        }

    def _compare(
        self, point: Point, config: Config, kernel: BoundKernel, launches: Sequence[list[Any]]
    ) -> Measurement | None:
        """Compare a candidate's outputs with the references, once; return None if they are
        right.
        """
        if (point, config) not in self._errors:
            self._errors[point, config] = check(self._layer.inputs(point), kernel, launches)
        error, bound = self._errors[point, config], WORST_ERROR[self._layer.problem.dtype]
        if error <= bound:
            return None
        detail = f"differs from the reference by {error:.3g}, bound {bound}"
        return Measurement(Status.WRONG_RESULT, detail=detail)

    def _kernel(self, point: Point, config: Config) -> BoundKernel:
        binding = self._kernels.bind(
            self._layer.problem, gemm_of(point), point.batch_size, config, self._target
        )
        return load(self._source, binding, (grid_size(binding),), self._target)


def spread_evenly(launches: Sequence[list[Any]], number: int) -> list[list[Any]]:
    """Return `number` of the launches: the first, the last, and others at equal distances."""
    last = len(launches) - 1
    return [launches[round(at * last / (number - 1))] for at in range(number)]


def _captured(routing: Fields, problem: FusedMoe) -> torch.Tensor:
    file = RoutingFile(Path(routing["path"]), routing["sha256"])
    return load_routing(file, problem).to("cuda")


def _answer(measurement: Measurement, extra_us: float = 0.0) -> Fields:
    """Return the answer's fields. `extra_us`: the candidate's cost to the engine outside its
    launch.
    """
    median_us, min_us = measurement.median_us, measurement.min_us
    said = [measurement.detail, f"{extra_us:.2f} us for padded rows" if extra_us else ""]
    whole = replace(
        measurement,
        median_us=None if median_us is None else median_us + extra_us,
        min_us=None if min_us is None else min_us + extra_us,
        detail="; ".join(filter(None, said)),
    )
    return measurement_fields(whole)


open_session = MoeOnGpu


WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def load_routing(file: RoutingFile, problem: FusedMoe) -> Tensor:
    """Load the (tokens, top_k) tensor of a `.pt` file as int32 in host memory.

    This loads only tensors, never code. Raises BadInput for a file that holds anything else, or
    expert ids that the problem's layer does not have.
    """
    data = file.read()
    try:
        ids = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # any error of torch's zip and pickle readers
        raise BadInput(f"{file.path}: not a tensor file: {type(error).__name__}") from None
    return _checked(ids, file.path, problem)


def _checked(ids: object, path: Path, problem: FusedMoe) -> Tensor:
    expected = f"expected (tokens, {problem.top_k}) expert ids from 0 to {problem.E - 1}"
    if not isinstance(ids, Tensor):
        raise BadInput(f"{path} holds a {type(ids).__name__}, not a tensor: {expected}")
    plain = ids.layout is torch.strided and ids.device.type == "cpu"  # "meta": without values
    if not plain or ids.dtype not in WHOLE:
        kind = f"{ids.dtype} tensor ({ids.layout}, {ids.device.type})"
        raise BadInput(f"{path} holds a {kind}, not a plain tensor of whole numbers: {expected}")
    if ids.ndim != 2 or ids.shape[1] != problem.top_k or len(ids) == 0:
        empty = ", no token" if ids.numel() == 0 else ""
        raise BadInput(f"{path} holds a tensor of shape {tuple(ids.shape)}{empty}: {expected}")
    least, most = int(ids.min()), int(ids.max())
    if least == ELSEWHERE and problem.ep == 1:
        raise BadInput(
            f"{path} holds -1, which stands for an expert on another GPU: tune with --ep, as the "
            f"server that was captured runs; {expected}"
        )
    if least < ELSEWHERE or most >= problem.E:
        wrong = least if least < ELSEWHERE else most
        raise BadInput(f"{path} holds the expert id {wrong}: {expected}")
    return ids.to(torch.int32)
