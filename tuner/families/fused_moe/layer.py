"""Hold a fused-MoE layer on the GPU: its tensors, its references, and the check of a kernel.

As in serving, launches run in a CUDA graph with different routings, so that the weights come from
HBM and not from L2. Outputs are filled with NaN and then compared with a float32 reference.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tuner.families.fused_moe.inputs import (
    ELSEWHERE,
    TORCH_TYPES,
    Activations,
    Routing,
    Slots,
    Weights,
    local_slots,
    make_activations,
    make_weights,
    operands,
    random_routing,
    references,
    slots_for,
    sort_activations,
)
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of, sorted_slots
from tuner.kernels.binding import Argument, Binding, Descriptor
from tuner.kernels.values import launch_values
from tuner.measure.timing import LAUNCHES, BoundKernel, ColdCache, Reference, elapsed_us
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point

CHECKED = (0, LAUNCHES - 1)  # the routings whose outputs are checked: a uniform and a skewed one
SKEWED = 3  # the number of routings that are drawn from a Zipf distribution over the experts
SKEW = 0.8
COPIED_BYTES = 1 << 28
KEPT_BYTES = 1 << 33  # of points' tensors, without weights
LARGEST_BLOCK_M = 256
# The largest |difference| / (|expected| + rms) of a correct kernel: three to four times the worst
# error on an H200, which the comments give. A wrong row or scale errs by about 1.
WORST_ERROR = {
    Dtype.BFLOAT16: 0.015,  # 0.0036: outputs are rounded to 16 bits
    Dtype.FLOAT16: 0.015,
    Dtype.FP8_W8A8: 0.03,  # 0.0092: Hopper's fp8 tensor cores add up in fewer bits than float32
    Dtype.INT8_W8A8: 0.015,  # 0.0036
    Dtype.INT8_W8A16: 0.015,  # 0.0035
    Dtype.INT4_W4A16: 0.08,  # 0.023: weights are rounded to 16 bits before they are multiplied
}


@dataclass
class Routings:
    """The routings of a batch size, a routing for each launch, and their slots. Both gemms read
    them.
    """

    experts: int
    drawn: Sequence[Routing]
    foreign_blocks: bool  # see `align`
    _slots: dict[tuple[Argument, ...], list[Slots]] = field(default_factory=dict)

    def slots(self, binding: Binding) -> list[Slots]:
        """Return the slots of each routing for a bound kernel."""
        arguments = binding.arguments
        key = tuple(arguments[n] for n in ("BLOCK_SIZE_M", "EM", "sorted_token_ids_ptr"))
        if key not in self._slots:
            self._slots[key] = slots_for(
                binding, self.drawn, self.experts, foreign_blocks=self.foreign_blocks
            )
        return self._slots[key]


@dataclass
class PointInputs:
    """The inputs that the launches of a point share. Tensors are on the GPU."""

    point: Point
    weights: Sequence[Weights]  # several copies if a single copy would stay in L2
    activations: Activations
    routings: Routings
    output: Tensor  # C (M * top_k, n)
    read_bytes: int  # of weights, by the launch with the first routing
    cold: ColdCache  # weights come from memory: a server's other layers push them out of L2
    _sorted: tuple[int, list[Activations]] | None = None  # of the last BLOCK_SIZE_M

    @cached_property
    def references(self) -> list[Reference]:
        """Return the expected rows of the output, the rows of `local_slots`, for the CHECKED
        routings.
        """
        checked = [self.routings.drawn[i] for i in CHECKED]
        return [*map(Reference, references(self.weights[0], self.activations, checked))]

    def launches(self, kernel: BoundKernel, config: Config) -> list[list[Any]]:
        """Return the kernel's arguments for each routing, in order."""
        routings, slots = self.routings.drawn, self.routings.slots(kernel.binding)
        rows = [self.activations] * len(routings)
        if isinstance(kernel.binding.arguments.get("a_desc"), Descriptor):
            rows = self._sorted_of(config["BLOCK_SIZE_M"], slots)
        return [
            launch_values(
                kernel.binding,
                operands(
                    self.weights[i % len(self.weights)], rows[i], routing, slots[i], self.output
                ),
            )
            for i, routing in enumerate(routings)
        ]

    def _sorted_of(self, block_m: int, slots: Sequence[Slots]) -> list[Activations]:
        if self._sorted is None or self._sorted[0] != block_m:
            self._sorted = None  # gives its memory back first
            valid = self.activations.a.shape[0]
            rows = sorted_slots(valid, self.routings.experts, block_m)
            made = [sort_activations(self.activations, s, rows) for s in slots]
            self._sorted = block_m, made
        return self._sorted[1]


class Layer:
    """The tensors of a problem. If they need too much memory, the least recently used are dropped.

    All points of a gemm share its weights.
    """

    def __init__(
        self,
        problem: FusedMoe,
        seed: int,
        l2_bytes: int,
        captured: Tensor | None = None,
        *,
        foreign_blocks: bool,
        free_bytes: int,
        device: str = "cuda",
    ) -> None:
        """Hold a problem's tensors.

        `captured`: expert ids to use instead of random ids. `foreign_blocks`: see `align`.
        `free_bytes`: memory of the device for all tensors.
        """
        self.problem = problem
        self._free_bytes, self._device = free_bytes, device
        self._foreign_blocks = foreign_blocks
        self._seed = seed
        self._l2_bytes = l2_bytes
        self._captured = captured
        self._weights: dict[Gemm, list[Weights]] = {}
        self._routings: dict[int, Routings] = {}
        self._inputs: OrderedDict[Point, PointInputs] = OrderedDict()
        self._most_bytes = 0

    def inputs(self, point: Point) -> PointInputs:
        """Return the tensors of a point that `reserve` was given."""
        if point not in self._inputs:
            while self._inputs and self._held([*self._inputs, point]) > self._most_bytes:
                self._inputs.popitem(last=False)  # gives its memory back first
            self._inputs[point] = self._make(point)
        self._inputs.move_to_end(point)
        return self._inputs[point]

    def reserve(self, points: Collection[Point]) -> int:
        """Return the least bytes of device memory that the largest of these points needs.

        The rest of the free memory decides how many points are kept.
        """
        weights = {gemm: self.problem.E * self._expert_bytes(gemm) for gemm in Gemm}
        copies = dict.fromkeys(Gemm, 1)
        for point in points:
            gemm = gemm_of(point)
            drawn = self._routings_at(point.batch_size).drawn
            copies[gemm] = max(copies[gemm], self._copies(gemm, drawn))
        # Weights of a gemm are there twice while they are made; then come a point's temporaries.
        passing = max([*weights.values(), *map(self._passing_bytes, points)])
        shared = sum(weights[gemm] * copies[gemm] for gemm in Gemm) + passing
        self._most_bytes = min(KEPT_BYTES, self._free_bytes - shared)
        return shared + max(self._held([point]) for point in points)

    def _held(self, points: Collection[Point]) -> int:
        """Return the bytes of the tensors of points, without the tensors that all points share."""
        return sum(map(self._point_bytes, points))

    def _point_bytes(self, point: Point) -> int:
        problem, gemm = self.problem, gemm_of(point)
        rows, n, k = self._shape(point)
        valid = point.batch_size * problem.top_k
        held_rows = rows
        if gemm is Gemm.DOWN:  # with TMA also sorted, for each launch
            held_rows += LAUNCHES * sorted_slots(valid, problem.E, LARGEST_BLOCK_M)
        activations = held_rows * k * problem.dtype.activation_bits // 8
        # The output, references with scales, and a difference.
        return activations + valid * n * (2 + 6 * len(CHECKED) + 4)

    def _passing_bytes(self, point: Point) -> int:
        """Return the bytes of a point's activations in float32, while they are quantised or
        compared.
        """
        rows, _, k = self._shape(point)
        return 4 * rows * k * 4

    def _shape(self, point: Point) -> tuple[int, int, int]:
        """Return (rows of A, n, k)."""
        gemm, rows = gemm_of(point), point.batch_size
        if gemm is Gemm.DOWN:
            rows *= self.problem.top_k
        return rows, *self.problem.gemm_shape(gemm)

    def _expert_bytes(self, gemm: Gemm) -> int:
        n, k = self.problem.gemm_shape(gemm)
        return n * k * self.problem.dtype.weight_bits // 8

    def _make(self, point: Point) -> PointInputs:
        problem, gemm = self.problem, gemm_of(point)
        compute = "fp16" if problem.dtype is Dtype.FLOAT16 else "bf16"
        routings = self._routings_at(point.batch_size)
        copies = self._copies(gemm, routings.drawn)
        weights = self._weights_of(gemm, copies, compute)
        n, _ = problem.gemm_shape(gemm)
        shape = (point.batch_size * problem.top_k, n)
        return PointInputs(
            point,
            weights,
            make_activations(
                problem,
                gemm,
                point.batch_size,
                device=self._device,
                seed=self._seed + 1,
                compute=compute,
            ),
            routings,
            torch.empty(shape, dtype=TORCH_TYPES[compute], device=self._device),
            _touched([routings.drawn[0]]) * self._expert_bytes(gemm),
            ColdCache(self._l2_bytes, self._graph_bytes(gemm, routings.drawn, copies)),
        )

    def _weights_of(self, gemm: Gemm, copies: int, compute: str) -> list[Weights]:
        """Return `copies` copies of a gemm's weights, which all its points share."""
        if gemm not in self._weights:
            self._weights[gemm] = [
                make_weights(
                    self.problem, gemm, device=self._device, seed=self._seed, compute=compute
                )
            ]
        made = self._weights[gemm]
        made += [replace(made[0], b=made[0].b.clone()) for _ in range(copies - len(made))]
        return made[:copies]

    def _routings_at(self, batch_size: int) -> Routings:
        if batch_size not in self._routings:
            drawn = self._draw(batch_size)
            self._routings[batch_size] = Routings(self.problem.E, drawn, self._foreign_blocks)
        return self._routings[batch_size]

    def _draw(self, batch_size: int) -> list[Routing]:
        def make(i: int) -> Routing:
            skew = SKEW if i >= LAUNCHES - SKEWED else 0.0
            seed = self._seed + 100 + i
            return random_routing(
                self.problem, batch_size, device=self._device, seed=seed, skew=skew
            )

        routings = [make(i) for i in range(LAUNCHES)]
        if self._captured is None:
            return routings
        rows = torch.arange(batch_size, device=self._device)
        return [
            replace(r, ids=self._captured[(rows + i * batch_size) % len(self._captured)])
            for i, r in enumerate(routings)
        ]

    def _graph_bytes(self, gemm: Gemm, routings: Sequence[Routing], copies: int) -> int:
        """Return the bytes of weights that the launches of a graph read together."""
        apart = [[routing] for routing in routings] if copies > 1 else [routings]
        return sum(map(_touched, apart)) * self._expert_bytes(gemm)

    def _copies(self, gemm: Gemm, routings: Sequence[Routing]) -> int:
        """Return 1 if the experts of a graph's launches exceed L2, else a copy for each launch."""
        touched_bytes = _touched(routings) * self._expert_bytes(gemm)
        return 1 if touched_bytes > 2 * self._l2_bytes else LAUNCHES


def _touched(routings: Sequence[Routing]) -> int:
    """Return the number of experts whose weights launches with these routings read."""
    ids = torch.cat([routing.ids.flatten() for routing in routings])
    return int(ids[ids != ELSEWHERE].unique().numel())


def check(inputs: PointInputs, kernel: BoundKernel, launches: Sequence[list[Any]]) -> float:
    """Return the worst error against the references, on outputs that were filled with NaN."""
    worst = 0.0
    for expected, i in zip(inputs.references, CHECKED, strict=True):
        inputs.output.fill_(float("nan"))
        kernel.launch(launches[i])
        rows = local_slots(inputs.routings.drawn[i])
        # A routing without a slot here has nothing to compare.
        if len(rows):
            worst = max(worst, expected.worst_error(inputs.output[rows]))
    return worst


def padding_us(inputs: PointInputs, config: Config, bytes_per_us: float) -> float:
    """Return the microseconds that a down gemm with TMA costs the engine outside its launch.

    With TMA the rows are in sorted order, so the engine also applies the activation function to the
    padding slots and quantises them. Both read and write 9 bytes a column: 2N + N elements of 16
    bits, then N of 16 bits and N of 8.
    """
    if not config.get("USE_TMA") or inputs.point.part is not Gemm.DOWN:
        return 0.0
    problem = inputs.weights[0].problem
    valid = inputs.point.batch_size * problem.top_k
    rows = sorted_slots(valid, problem.E, config["BLOCK_SIZE_M"]) - valid
    return rows * problem.N * 9 / bytes_per_us


def copy_bytes_per_us() -> float:
    """Return the bytes per microsecond that a large copy on this GPU reads and writes."""
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * COPIED_BYTES / elapsed_us(lambda: target.copy_(source))
