"""Measure the candidates of a dense GEMM on this process's GPU, on tensors that are kept.

All batch sizes share the weights. The launches of a graph read weights that are not in L2, because
the weights of a layer are not in L2 when a server comes to the layer. There are three ways:

- weights that are much larger than L2 push themselves out;
- otherwise each launch has its own copy;
- if all copies together would stay in L2, they are pushed out before a graph is timed.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from tuner.backends.operands import Call, GemmOperands
from tuner.engines.engine import find_engine
from tuner.families.dense_gemm.engine import GemmLaunch, gemm_engine
from tuner.families.dense_gemm.inputs import (
    Quantised,
    make_activations,
    make_output,
    make_scratch,
    make_weights,
    operands,
    reference,
)
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.kernels.values import launch_values
from tuner.measure.library_calls import backend_of, chains_of, measured
from tuner.measure.messages import measurement_fields, read_point
from tuner.measure.this_gpu import last_cache_bytes, local_target
from tuner.measure.timing import (
    COLD,
    LAUNCHES,
    BoundKernel,
    Chain,
    ColdCache,
    Reference,
    capture_chains,
    load,
    race,
    run_chain,
    time_graph,
)
from tuner.problems.dtypes import Dtype
from tuner.problems.points import TRITON, Config
from tuner.problems.results import Measurement, Status

# The largest |difference| / (|expected| + rms) of a correct kernel: the bounds of fused MoE, whose
# kernel multiplies the same types (three to four times the worst error on an H200).
WORST_ERROR = {Dtype.FP8_W8A8: 0.03, Dtype.INT8_W8A8: 0.015}
CHECKED = 1 << 25  # elements of C that are compared; of more, evenly spread rows
KEPT_BYTES = 1 << 33  # of cached batches
PLACES = 4  # in memory, at which a race times its candidates

Library = Callable[[Sequence[GemmOperands]], list[Call]]  # a backend's `gemm`


@dataclass(frozen=True)
class GemmBatch:
    """The tensors of a batch size: a different A for each launch, and a shared C."""

    activations: list[Quantised]
    weights: list[Quantised]
    output: Tensor

    @property
    def nbytes(self) -> int:
        """Return the GPU memory of A and C."""
        tensors = [t for one in self.activations for t in (one.values, one.scale)]
        return int(sum(tensor.nbytes for tensor in (*tensors, self.output)))

    def chains(self, launches: list[GemmLaunch], kernels: list[BoundKernel]) -> list[Chain]:
        """Return the kernels of a GEMM with the tensors of each launch of a graph. The launches
        share the tensors that the engine allocates, which must outlive the graph.
        """
        scratch = make_scratch(launches, device="cuda")
        return [self._chain(launches, kernels, at, scratch) for at in range(LAUNCHES)]

    def _chain(
        self,
        launches: list[GemmLaunch],
        kernels: list[BoundKernel],
        at: int,
        scratch: dict[str, Tensor],
    ) -> Chain:
        weights = self.weights[at % len(self.weights)]
        tensors = {**operands(self.activations[at], weights, self.output), **scratch}
        pairs = zip(kernels, launches, strict=True)
        return [(kernel, launch_values(launch.binding, tensors)) for kernel, launch in pairs]

    def calls(self, library: Library) -> list[Call]:
        """Return a library's calls with the tensors of each launch of a graph."""
        return library([self._operands(at) for at in range(LAUNCHES)])

    def library_error(self, library: Library) -> float:
        """Return the worst error of a library's first call."""
        self.output.fill_(float("nan"))
        (call,) = library([self._operands(0)])
        return self._expected.worst_error(call()[self._rows])

    def _operands(self, at: int) -> GemmOperands:
        a, b = self.activations[at], self.weights[at % len(self.weights)]
        block = None if b.tile[0] == 1 else b.tile
        return GemmOperands(a.values, b.values, a.scale, b.scale, self.output, block)

    def moved(self, weights: list[Quantised]) -> GemmBatch:
        """Return a copy of this batch elsewhere in memory. `weights` are copies of this batch's
        weights.
        """
        activations = [one.clone() for one in self.activations]
        return GemmBatch(activations, weights, torch.empty_like(self.output))

    @cached_property
    def _rows(self) -> Tensor:
        """Return the rows of C that are compared."""
        rows, columns = self.output.shape
        most = max(1, min(rows, CHECKED // columns))
        found = torch.linspace(0, rows - 1, most, device=self.output.device)
        return found.round_().long()

    @cached_property
    def _expected(self) -> Reference:
        return Reference(reference(self.activations[0], self.weights[0], self._rows))

    def error(self, chain: Chain) -> float:
        """Return the worst error of the first of `chains`, on an output that was filled with
        NaN.
        """
        self.output.fill_(float("nan"))
        run_chain(chain)
        return self._expected.worst_error(self.output[self._rows])


class GemmBatches:
    """The batches of a problem. If they need too much memory, the least recently used are
    dropped.
    """

    def __init__(self, problem: DenseGemm, seed: int, l2_bytes: int) -> None:
        self._problem, self._seed, self._l2_bytes = problem, seed, l2_bytes
        self._kept: OrderedDict[int, GemmBatch] = OrderedDict()
        total = torch.cuda.get_device_properties(0).total_memory
        self._byte_limit = min(KEPT_BYTES, total // 4)

    def at(self, batch_size: int) -> GemmBatch:
        """Return a batch size's tensors."""
        if batch_size not in self._kept:
            self._kept[batch_size] = self._make(batch_size)
        self._kept.move_to_end(batch_size)
        while len(self._kept) > 1 and sum(b.nbytes for b in self._kept.values()) > self._byte_limit:
            self._kept.popitem(last=False)
        return self._kept[batch_size]

    def places(self, batch_size: int) -> list[GemmBatch]:
        """Return the same batch at PLACES places in memory, all of them allocated at once."""
        first = self.at(batch_size)
        return [first, *(first.moved(weights) for weights in self._moved_weights)]

    def push_out(self) -> None:
        """Push the weights out of L2 if they would stay there."""
        self._cold.push_out()

    def needed_bytes(self, largest: int) -> int:
        """Return the bytes of device memory for the largest batch, with its reference and the
        copies of B.
        """
        problem = self._problem
        checked = min(largest, max(1, CHECKED // problem.N))
        b = problem.N * problem.K * self._copies + 4 * problem.K * min(problem.N, 4096)
        a = largest * problem.K * LAUNCHES + 8 * largest * problem.K
        quantising = 20 * max(problem.N, largest) * problem.K  # float32, several times
        c = largest * problem.N * 2
        return PLACES * (b + a + c) + quantising + 3 * checked * problem.N * 4

    @property
    def _copies(self) -> int:
        size = self._problem.N * self._problem.K  # bytes of one B
        return 1 if size > COLD * self._l2_bytes else LAUNCHES

    @cached_property
    def _weights(self) -> list[Quantised]:
        first = make_weights(self._problem, device="cuda", seed=self._seed)
        copies = [replace(first, values=first.values.clone()) for _ in range(self._copies - 1)]
        return [first, *copies]

    @cached_property
    def _moved_weights(self) -> list[list[Quantised]]:
        return [[one.clone() for one in self._weights] for _ in range(PLACES - 1)]

    @cached_property
    def _cold(self) -> ColdCache:
        held = self._problem.N * self._problem.K * self._copies
        return ColdCache(self._l2_bytes, held)

    def _make(self, batch_size: int) -> GemmBatch:
        activations = [
            make_activations(self._problem, batch_size, device="cuda", seed=self._seed + 1 + at)
            for at in range(LAUNCHES)
        ]
        output = make_output(self._problem, batch_size, device="cuda")
        return GemmBatch(activations, self._weights, output)


Fields = dict[str, Any]


class GemmOnGpu:
    """Checks and times candidates. `tuner.measure.gpu_child` describes the requests.

    A race times its candidates at several places in memory, because the ratio of two candidates'
    times depends on the places, and a server's tensors lie elsewhere again.
    """

    def __init__(self, problem: DenseGemm, request: Fields) -> None:
        self._problem, self._bound = problem, WORST_ERROR[problem.dtype]
        self._target = local_target()
        self._kernels = gemm_engine(find_engine(request["engine"])).lift(self._target.platform)
        self._batches = GemmBatches(problem, request["seed"], last_cache_bytes())
        self._source = self._kernels.lifted.write(Path(request["lifted_dir"]))
        largest = max(read_point(fields).batch_size for fields in request["points"])
        self.ready: Fields = {"needed_bytes": self._batches.needed_bytes(largest)}

    def measure(self, request: Fields) -> Fields:
        """Check a candidate, then time it."""
        size, config = read_point(request).batch_size, Config(request["config"])
        batch, backend = self._batches.at(size), request.get("backend", TRITON)
        if backend != TRITON:
            timed = measured(  # it asks for the library, which may be missing
                lambda: batch.calls(self._library(backend)),
                lambda: batch.library_error(self._library(backend)),
                self._bound,
                self._batches.push_out,
            )
            return measurement_fields(timed)
        try:
            chains = batch.chains(*self._loaded(size, config))
            error = batch.error(chains[0])
        except triton.runtime.errors.OutOfResources as refusal:
            return measurement_fields(Measurement(Status.OUT_OF_RESOURCES, detail=str(refusal)))
        if not error <= self._bound:
            detail = f"differs from the reference by {error:.3g}, bound {self._bound}"
            return measurement_fields(Measurement(Status.WRONG_RESULT, detail=detail))
        timed = time_graph(capture_chains(chains), request["best_us"], self._batches.push_out)
        return measurement_fields(replace(timed, detail=f"worst error {error:.2g}"))

    def race(self, request: Fields) -> Fields:
        """Time several candidates of a point in turn, at several places in memory."""
        size = read_point(request).batch_size
        loaded = [self._loaded(size, Config(fields)) for fields in request["configs"]]
        rounds = -(-request["rounds"] // 2)  # at each place
        samples = []
        for batch in self._batches.places(size):
            chains = [batch.chains(*one) for one in loaded]
            chains += [
                chains_of(batch.calls(self._library(n))) for n in request.get("backends", [])
            ]
            graphs = [capture_chains(some) for some in chains]
            samples.append(race(graphs, rounds, self._batches.push_out))
        return {"measurements": [_raced(one) for one in zip(*samples, strict=True)]}

    def _loaded(
        self, batch_size: int, config: Config
    ) -> tuple[list[GemmLaunch], list[BoundKernel]]:
        launches = self._kernels.launches(self._problem, batch_size, config, self._target)
        kernels = [load(self._source, one.binding, one.grid, self._target) for one in launches]
        return launches, kernels

    def _library(self, name: str) -> Library:
        library: Library = backend_of(name, self._problem.family).module().gemm
        return library


def _raced(places: Sequence[Sequence[float]]) -> Fields:
    """Combine a candidate's times at each place into a measurement."""
    mean_us = statistics.fmean(statistics.median(some) for some in places)
    least_us = min(min(some) for some in places)
    replays = sum(len(some) for some in places)
    return measurement_fields(Measurement(Status.OK, mean_us, least_us, replays))


open_session = GemmOnGpu
