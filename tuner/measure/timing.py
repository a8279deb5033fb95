"""Time compiled kernels with CUDA graphs: one kernel alone, or several in turn.

The last cache is emptied before each launch, as a server's other layers do. `Reference` computes an
output's error.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tuner.compile.kernel import compile_kernel, launch
from tuner.devices.target import Target
from tuner.kernels.binding import Binding, Variant
from tuner.problems.results import Measurement, Status

LAUNCHES = 10  # in a graph, each with other inputs, so that they are read from HBM
# A graph that takes as long needs no more launches, and no replay to warm up: attention at a long
# context takes over 100 ms a launch, and the cache's contents after another launch no longer
# matter.
LONG_GRAPH_US = 10_000.0
REPLAYS = 3
# Cycles of its clock for which the GPU is kept busy before a replay begins: 100 us at 2 GHz, and
# HOLD_US at the 2.5 GHz of the fastest cards. An idle GPU would pass the first event at once, and
# then wait for the host to launch the graph: 10 to 20 us on hosts with an H100, and milliseconds if
# compile processes take the host's cores.
HOLD_CYCLES, HOLD_US = 200_000, 80.0
LATE = 0.002  # the share of a time by which the host may be late all the same
ENOUGH_US = 30_000.0  # no more replays once a candidate has taken this long
# How far a replay may lie from the median of several, as a share of the median. On an H200, the
# fastest of five lies as near at 99 of 100 candidates of each of 16 recorded points.
SPREAD = 0.05
# Graphs are timed in turn until the fastest has taken this long, but at least so often.
RACE_US, LEAST_ROUNDS = 150_000.0, 3
# After a third of the rounds, a graph is out if its median is slower than the best by so much. The
# medians of three rounds vary by less than 0.5 % on an H200.
LOST = 0.02


@dataclass(frozen=True)
class BoundKernel:
    """A compiled kernel and the binding that it was compiled for."""

    compiled: Any  # triton.compiler.CompiledKernel
    binding: Binding
    grid: tuple[int, ...]  # of thread blocks, in one to three dimensions

    def launch(self, values: Sequence[Any], stream: int | None = None) -> None:
        """Run it once on a stream, or on the current stream. `values` has a value for each
        parameter.
        """
        x, y, z = (*self.grid, 1, 1)[:3]
        launch(self.compiled, (x, y, z), values, stream)


def load(source: Path, binding: Binding, grid: tuple[int, ...], target: Target) -> BoundKernel:
    """Return the kernel that a binding compiles to; `source` is a file that `Lifted.write` made."""
    return BoundKernel(_compiled(source, binding.variant(), target), binding, grid)


# Points, and the problems of a model, share kernels. Reading a kernel from Triton's cache and
# loading it into the GPU takes milliseconds.
@lru_cache(maxsize=4096)
def _compiled(source: Path, variant: Variant, target: Target) -> Any:  # noqa: ANN401 (CompiledKernel)
    return compile_kernel(source, variant.as_json(), target)


@dataclass(frozen=True)
class LibraryCall:
    """A call of a library, which launches its kernels on the current stream."""

    call: Callable[[], object]

    def launch(self, values: Sequence[Any], stream: int | None = None) -> None:
        """Run it once. A capture makes its stream the current stream; there are no other values."""
        self.call()


# Kernels that run one after the other, with their arguments; they are timed as one launch.
Chain = Sequence[tuple[BoundKernel | LibraryCall, list[Any]]]


@dataclass(frozen=True)
class Captured:
    """A graph of launches, and their arguments.

    A graph has only the addresses of its tensors. If the tensors were freed, the next tensors would
    take their memory, and the graph would read those.
    """

    graph: torch.cuda.CUDAGraph
    launched: Sequence[object]  # an item for each launch, which keeps its tensors

    @property
    def launches(self) -> int:
        return len(self.launched)


def capture(kernel: BoundKernel, launches: Sequence[list[Any]], least: int = 1) -> Captured:
    """Capture launches of a kernel in a graph, as `capture_chains` does."""
    return capture_chains([[(kernel, args)] for args in launches], least)


def capture_chains(chains: Sequence[Chain], least: int = 1) -> Captured:
    """Capture chains of kernels in a graph: as many as take LONG_GRAPH_US, but at least `least`.

    The first chain runs before, which loads the kernels. `torch.cuda.graph` would give all unused
    memory back to the driver first, and the next check would have to ask for it again.
    """
    if least < len(chains):
        enough = math.ceil(LONG_GRAPH_US / _chain_us(chains[0], len(chains)))
        chains = chains[: max(least, enough)]
    else:
        run_chain(chains[0])
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            for chain in chains:
                run_chain(chain, stream.cuda_stream)
        finally:
            graph.capture_end()
    return Captured(graph, chains)


def _chain_us(chain: Chain, wanted: int) -> float:
    """Return an upper limit of a chain's microseconds.

    The limit matters only if `wanted` chains would take too long.
    """
    first = elapsed_us(lambda: run_chain(chain))
    if first * wanted < LONG_GRAPH_US:
        return first
    return elapsed_us(lambda: run_chain(chain))  # the first time may have loaded its kernels


def run_chain(chain: Chain, stream: int | None = None) -> None:
    """Run a chain's kernels once, on a stream or on the current stream."""
    for kernel, args in chain:
        kernel.launch(args, stream)


def elapsed_us(work: Callable[[], object]) -> float:
    """Return the microseconds that work takes on the current stream; the host waits for its end."""
    return _timed(work)[0]


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the microseconds of work on the current stream, and of its launch on the host."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began = time.perf_counter()
    start.record()
    work()
    launch_us = (time.perf_counter() - began) * 1e6
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3, launch_us


def replay(graph: Captured, before: Callable[[], object] | None = None) -> tuple[float, bool]:
    """Return microseconds per launch of one replay, and whether the host launched it in time.

    `before` runs first, untimed, on the same stream.
    """
    if before is not None:
        before()
    torch.cuda._sleep(HOLD_CYCLES)
    replayed_us, launch_us = _timed(graph.graph.replay)
    return replayed_us / graph.launches, launch_us - HOLD_US <= LATE * replayed_us


def time_graph(
    graph: Captured, best_us: float | None, before: Callable[[], object] | None = None
) -> Measurement:
    """Return the median of up to REPLAYS replays, after a replay to warm up.

    The warm-up may take seven times as long as a replay. A candidate that is surely slower than
    `best_us`, the median of its point's best so far, gets no more replays. If the host was late,
    one replay is not enough to be sure.
    """
    first, in_time = replay(graph, before)
    sure = in_time and first * graph.launches >= LONG_GRAPH_US
    samples = [first] if sure else []
    while len(samples) < REPLAYS and sum(samples) * graph.launches < ENOUGH_US:
        if sure and is_slower(min(samples), best_us):
            break
        replayed_us, in_time = replay(graph, before)
        samples.append(replayed_us)
        sure = in_time or len(samples) > 1
    return Measurement(Status.OK, statistics.median(samples), min(samples), len(samples))


def is_slower(least_us: float, best_us: float | None) -> bool:
    """Say whether a candidate with this fastest replay is surely slower than the best so far."""
    return best_us is not None and least_us * (1 - SPREAD) > best_us


def race(
    graphs: Sequence[Captured], rounds: int, before: Callable[[], object] | None = None
) -> list[list[float]]:
    """Return microseconds per launch of each graph in each of up to `rounds` rounds.

    Each round has another order. A graph that heats the GPU slows the next graph down, so no graph
    should always follow the same graph. A graph that has clearly lost has no times of later rounds.
    """
    fastest_us = min(replay(graph, before)[0] * graph.launches for graph in graphs)
    rounds = min(rounds, max(LEAST_ROUNDS, int(RACE_US / fastest_us)))
    samples: list[list[float]] = [[] for _ in graphs]
    still = list(range(len(graphs)))
    for turn in range(rounds):
        for i in random.Random(turn).sample(still, len(still)):  # noqa: S311
            samples[i].append(replay(graphs[i], before)[0])
        if turn + 1 == max(LEAST_ROUNDS, rounds // 3):
            medians = [statistics.median(some) for some in samples]
            still = [i for i in still if medians[i] * (1 - LOST) <= min(medians)]
    return samples


class Reference:
    """The expected output, and the scale of its errors, for many outputs."""

    def __init__(self, expected: Tensor, least_scale: float = 0.0) -> None:
        """Take `expected` in float32. `least_scale`: for outputs that may be all zeros."""
        self._expected, self._least_scale = expected, least_scale

    @cached_property
    def _scale(self) -> Tensor:
        """Compute |expected| + root mean square of expected, in 16 bits: wrong by 0.4 % at most."""
        expected = self._expected
        rms = expected.square().mean().sqrt().clamp(min=self._least_scale)
        return (expected.abs() + rms).bfloat16()

    def worst_error(self, output: Tensor) -> float:
        """Return the largest |difference| / scale; infinite for a NaN."""
        difference = torch.sub(output, self._expected)
        # The largest of numbers with a NaN is a NaN. Only this line waits for the GPU.
        error = difference.div_(self._scale).abs_().amax().item()
        return math.inf if math.isnan(error) else error


COLD = 2  # times the size of the cache: the memory that pushes everything else out


class ColdCache:
    """Removes a graph's inputs from the cache if they would stay there."""

    def __init__(self, cache_bytes: int, read_bytes: int) -> None:
        """Take the cache's size, and `read_bytes`: the bytes that all launches of a graph read."""
        self.stays_warm = read_bytes <= COLD * cache_bytes
        self._cache_bytes = cache_bytes

    def push_out(self) -> None:
        """Read other memory, if any input would stay in the cache."""
        if self.stays_warm:
            filler, total = _filler(self._cache_bytes)
            torch.sum(filler, dim=0, out=total)


@lru_cache(maxsize=1)  # all points of a process share it
def _filler(cache_bytes: int) -> tuple[Tensor, Tensor]:
    """Allocate memory that fills a cache twice, and the place of its sum."""
    some = torch.zeros(COLD * cache_bytes // 4, dtype=torch.float32, device="cuda")
    return some, torch.empty((), dtype=torch.float32, device="cuda")
