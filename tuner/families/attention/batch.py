"""Make attention's batches on the GPU: each point's launch inputs, cached between candidates.

A kernel is checked twice: on every sequence of its phase's ragged edge cases, and on the last rows
of the point's first sequence, which attend to the most keys.

Triton's extend kernel reads new keys and values from separate tensors. An engine writes them into
its cache first, whatever kernel follows, and the libraries' kernels read all of them there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tuner.backends.operands import AttentionOperands as Operands
from tuner.backends.operands import Call, need
from tuner.families.attention.inputs import Inputs, compared, make_inputs, output_of, reference
from tuner.families.attention.kernels import AttentionKernels
from tuner.families.attention.problem import Attention, AttentionPart, AttentionPhase
from tuner.families.attention.splits import EDGES, KV_SPLITS, Lengths, parts_of, ragged
from tuner.kernels.values import launch_values
from tuner.measure.timing import LAUNCHES, BoundKernel, ColdCache, Reference
from tuner.problems.points import Config, Part, Point

CHECKED_ROWS = 64  # the last rows of a point's first sequence
Library = Callable[[Sequence[Operands]], list[Call]]  # a backend's `attention`
KEPT_BYTES = 1 << 35  # 32 GiB of cached batches, but at most half of the GPU's memory


@dataclass(frozen=True)
class AttentionBatch:
    """The inputs of a point's launches, in order. Tensors are on the GPU."""

    point: Point
    inputs: Sequence[Inputs]  # several if a single cache would stay in L2
    cores: int  # the device's multiprocessors
    cold: ColdCache | None = None  # None: nothing is read from a cache of keys and values

    def before(self, part: Part) -> Callable[[], object] | None:
        """Return what a part's launch needs before it: the cache of keys and values pushed out of
        L2.

        The second kernel of decode needs nothing, because it reads results that the first kernel
        has just written.
        """
        return self.cold.push_out if self.cold and part is not AttentionPart.REDUCE else None

    def arguments(self, kernel: BoundKernel, config: Config) -> list[list[Any]]:
        """Return the kernel's arguments for each launch of a graph, with a configuration's
        splits.
        """
        some = [launch_values(kernel.binding, self.tensors(at, config)) for at in self.inputs]
        return [some[i % len(some)] for i in range(LAUNCHES)]

    def tensors(self, inputs: Inputs, config: Config) -> Mapping[str, Tensor]:
        """Return the inputs' tensors, with the splits of a configuration that chooses them."""
        if KV_SPLITS not in config:  # the problem fixes them
            return inputs.tensors
        parts = parts_of(inputs.problem, config, inputs.lengths, self.cores)
        return inputs.tensors_with(parts)

    @cached_property
    def nbytes(self) -> int:
        """Return the GPU memory that the batch occupies."""
        tensors = (t for inputs in self.inputs for t in inputs.tensors.values())
        return sum(
            {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
        )

    def calls(self, library: Library) -> list[Call]:
        """Return a library's calls for each launch of a graph. Only the calls keep the copies made
        for them.
        """
        some = library([operands_of(inputs) for inputs in self.inputs])
        return [some[i % len(some)] for i in range(LAUNCHES)]

    @cached_property
    def expected(self) -> Reference:
        """Return the first sequence's last rows, (rows, q_heads, Lv)."""
        return Reference(reference(self.inputs[0], 0, slice(-CHECKED_ROWS, None)))


class AttentionBatches:
    """The batches of a problem. If they need too much memory, the least recently used are
    dropped.
    """

    def __init__(
        self,
        kernels: AttentionKernels,
        problem: Attention,
        room: int,
        seed: int,
        cores: int,
        l2_bytes: int,
    ) -> None:
        """Hold no batch yet.

        `room`: the most splits of a sequence, over all configurations. `cores`: the device's
        multiprocessors.
        """
        self._kernels, self._problem, self._room = kernels, problem, room
        self._seed, self._cores, self._l2_bytes = seed, cores, l2_bytes
        self._kept: OrderedDict[tuple[int, int, int], AttentionBatch] = OrderedDict()
        total = torch.cuda.get_device_properties(0).total_memory
        self._byte_limit = min(KEPT_BYTES, total // 2)

    def at(self, point: Point) -> AttentionBatch:
        """Return a point's batch, which both kernels of decode share."""
        key = point.batch_size, point.new_tokens, point.cached_tokens
        if key not in self._kept:
            self._kept[key] = self._make(point)
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(b.nbytes for b in self._kept.values()) > self._byte_limit:
            self._kept.popitem(last=False)
        return self._kept[key]

    @cached_property
    def edges(self) -> AttentionBatch:
        """Return the edge cases of the phase."""
        return self._of_lengths(EDGES[self._problem.phase])

    @cached_property
    def library_edges(self) -> AttentionBatch:
        """Return the edge cases that servers have: sequences with something to do."""
        edges, decode = EDGES[self._problem.phase], self._problem.phase is AttentionPhase.DECODE
        pairs = zip(edges.new, edges.cached, strict=True)
        kept = [(new, cached) for new, cached in pairs if new and (cached or not decode)]
        new, cached = zip(*kept, strict=True)
        return self._of_lengths(Lengths(new, cached))

    @cached_property
    def library_edges_uncached(self) -> AttentionBatch:
        """Return these cases of extend with nothing cached: some libraries take no cached
        prefix.
        """
        new = self.library_edges.inputs[0].lengths.new
        return self._of_lengths(Lengths(new, (0,) * len(new)))

    def _of_lengths(self, lengths: Lengths) -> AttentionBatch:
        part = self._problem.parts[0]
        point = Point(len(lengths.new), part, lengths.longest_new, max(lengths.cached))
        return AttentionBatch(point, [self._inputs(lengths)], self._cores)

    @cached_property
    def edges_expected(self) -> dict[int, Reference]:
        """Return the expected output by sequence, (new tokens, q_heads, Lv)."""
        inputs = self.edges.inputs[0]
        return {i: Reference(reference(inputs, i)) for i in compared(inputs)}

    def needed_bytes(self, points: Sequence[Point]) -> int:
        """Return the bytes of device memory for the largest point, including its reference."""
        problem = self._problem

        def of(point: Point) -> int:
            rows = point.batch_size * max(1, point.new_tokens)
            slots = 2.5 * point.batch_size * point.cached_tokens
            row = problem.kv_heads * (problem.Lq + problem.Lv) * 2
            queries = rows * problem.q_heads * (problem.Lq + problem.Lv) * 2
            splits = 0
            if problem.phase is AttentionPhase.DECODE:
                splits = point.batch_size * problem.q_heads * self._room * problem.Lv * 4
            keys = (point.cached_tokens + point.new_tokens) * problem.kv_heads * problem.Lq * 8
            return int(slots * row + rows * row + queries + splits + 4 * keys)

        return max((of(point) for point in points), default=0)

    def _make(self, point: Point) -> AttentionBatch:
        first = self._inputs(ragged(self._problem, point, self._seed))
        read = sum(first.lengths.cached) * self._problem.kv_heads * self._problem.Lq * 2
        copies = 1 if not read or read > 2 * self._l2_bytes else LAUNCHES
        caches = (torch.randn_like(first.tensors["k_buffer"]) for _ in range(copies - 1))
        copies_of_first = (first.with_cache(cache) for cache in caches)
        cold = ColdCache(self._l2_bytes, read * copies) if read else None
        return AttentionBatch(point, [first, *copies_of_first], self._cores, cold)

    def _inputs(self, lengths: Lengths) -> Inputs:
        problem = self._problem
        if problem.chooses_splits:  # one buffer has room for all choices
            problem = problem.with_room(self._room)
        return make_inputs(
            self._kernels, problem, lengths, device="cuda", seed=self._seed, cores=self._cores
        )


def check(
    kernels: Mapping[AttentionPart, tuple[BoundKernel, BoundKernel]],
    batches: AttentionBatches,
    batch: AttentionBatch,
    config: Config,
) -> float:
    """Return the worst error of a phase's kernels, on outputs that were filled with NaN.

    `kernels` has two for each part: bound to the edge cases, and bound to the batch. `config` has
    the splits, if it chooses them.
    """
    edges = batches.edges
    _run(edges, [pair[0] for pair in kernels.values()], config)
    found = edges.inputs[0]
    errors = [
        expected.worst_error(output_of(found, i)) for i, expected in batches.edges_expected.items()
    ]
    _run(batch, [pair[1] for pair in kernels.values()], config)
    errors.append(batch.expected.worst_error(output_of(batch.inputs[0], 0)[-CHECKED_ROWS:]))
    return max(errors)


def check_library(library: Library, batches: AttentionBatches, batch: AttentionBatch) -> float:
    """Return the worst error of a library's output for the edge cases and for the batch."""
    cached = batch.point.cached_tokens > 0
    edges = batches.library_edges if cached else batches.library_edges_uncached
    errors = []
    found = _called(library, edges)
    for i in compared(edges.inputs[0]):
        expected = Reference(reference(edges.inputs[0], i))
        errors.append(expected.worst_error(output_of(found, i)))
    errors.append(batch.expected.worst_error(output_of(_called(library, batch), 0)[-CHECKED_ROWS:]))
    return max(errors)


def _called(library: Library, batch: AttentionBatch) -> Inputs:
    """Return the batch's first inputs, with a library's answer as their output."""
    inputs = batch.inputs[0]
    inputs.output.fill_(float("nan"))
    (call,) = library([operands_of(inputs)])
    return inputs.with_output(call())


def _run(batch: AttentionBatch, kernels: Sequence[BoundKernel], config: Config) -> None:
    """Run all kernels once on the batch's first inputs."""
    inputs = batch.inputs[0]
    inputs.output.fill_(float("nan"))
    tensors = batch.tensors(inputs, config)
    for kernel in kernels:
        kernel.launch(launch_values(kernel.binding, tensors))


def operands_of(inputs: Inputs) -> Operands:
    """Return the operands for a library. Raises Unsupported for phases without a cache."""
    problem, tensors, lengths = inputs.problem, inputs.tensors, inputs.lengths
    need(problem.phase is not AttentionPhase.PREFILL, "libraries are measured with a cache alone")
    extend = problem.phase is AttentionPhase.EXTEND
    if extend:
        k, v, slots = _with_new(inputs)
        total = tuple(a + b for a, b in zip(lengths.cached, lengths.new, strict=True))
    else:
        k, v, slots = tensors["k_buffer"], tensors["v_buffer"], tensors["kv_indices"]
        total = lengths.cached
    return Operands(
        q=tensors["q_extend" if extend else "q"],
        k_cache=k,
        v_cache=v,
        out=inputs.output,
        slots=slots.int(),
        new=lengths.new,
        total=total,
        scale=problem.Lq**-0.5,
        window=problem.window,
        sinks=tensors["sinks"] if problem.sinks else None,
        logit_cap=problem.logit_cap,
        latent=problem.shares_kv,
    )


def _with_new(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys, values and slots of a cache in which the new tokens lie behind the cached
    tokens.
    """
    tensors, lengths = inputs.tensors, inputs.lengths
    k = torch.cat([tensors["k_buffer"], tensors["k_extend"]])
    if inputs.problem.shares_kv:
        v = k[..., : inputs.problem.Lv]
    else:
        v = torch.cat([tensors["v_buffer"], tensors["v_extend"]])
    cached = tensors["kv_indices"][: sum(lengths.cached)].split(list(lengths.cached))
    first = len(tensors["k_buffer"])
    rows = torch.arange(first, first + sum(lengths.new), device=k.device, dtype=cached[0].dtype)
    new = rows.split(list(lengths.new))
    parts = [part for pair in zip(cached, new, strict=True) for part in pair]
    return k, v, torch.cat(parts)
