"""Keep the tensors of a scan's chain of kernels between candidates. This module imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from tuner.families.scans.engine import ScanKernels, ScanLaunch
from tuner.families.scans.scan import ScanProblem, kernel_of, scan_of
from tuner.kernels.binding import Pointer
from tuner.measure.timing import LAUNCHES, Reference
from tuner.problems.points import Point

_LEAST_SCALE = 1e-3  # of the errors of a tensor
_CACHES = 2  # the copies of a chain's tensors together are so many times as large as L2


@dataclass(frozen=True)
class ScanBatch:
    """The tensors of a batch of prompts: a copy for each launch of a graph.

    Tensors between two kernels have the reference's values, in the engine's types. So a kernel is
    timed and checked with the same inputs, whichever configurations run before it.
    """

    problem: ScanProblem
    point: Point
    expected: dict[str, Tensor]
    copies: list[dict[str, Tensor]]

    def error(self, names: set[str]) -> float:
        """Return the worst error of the named tensors of the first copy."""
        return max(map(self._error, names))

    def _error(self, name: str) -> float:
        return self._references[name].worst_error(self.copies[0][name])

    @cached_property
    def _references(self) -> dict[str, Reference]:
        """Return the references. A scale is never 0: the states before a prompt's only chunk are
        all zeros.
        """
        expected = self.expected.items()
        return {name: Reference(t, _LEAST_SCALE) for name, t in expected}

    def clear(self, names: set[str]) -> None:
        """Fill tensors of the first copy with NaN, or with the values that they begin with."""
        begins = scan_of(self.problem).begins
        for name in names:
            self.copies[0][name].fill_(begins.get(name, math.nan))

    def restore(self, names: set[str]) -> None:
        """Give tensors of the first copy the reference's values."""
        for name in names:
            self.copies[0][name].copy_(self.expected[name])

    @contextmanager
    def restored(self, names: set[str]) -> Iterator[None]:
        """Restore tensors at the end, also after an error, because later kernels read them."""
        try:
            yield
        finally:
            self.restore(names)


class ScanBatches:
    """The batches of a problem. As many are kept as `most_bytes` hold, but at least the newest:
    trials of several sizes come in any order.
    """

    def __init__(
        self,
        problem: ScanProblem,
        kernels: ScanKernels[Any],
        seed: int,
        l2_bytes: int,
        most_bytes: int = 0,
        device: str = "cuda",
    ) -> None:
        self._problem, self._kernels = problem, kernels
        self._inputs = scan_of(problem).inputs
        self._seed, self._l2_bytes, self._most_bytes = seed, l2_bytes, most_bytes
        self._device = device
        self._kept: dict[tuple[int, int], ScanBatch] = {}

    def at(self, point: Point) -> ScanBatch:
        """Return the tensors of a point, which all parts share."""
        size = point.batch_size, point.new_tokens
        if size not in self._kept:
            while self._kept and self._held([*self._points(), point]) > self._most_bytes:
                del self._kept[next(iter(self._kept))]  # gives its memory back first
            self._kept[size] = self._make(point)
        return self._kept[size]

    def needed_bytes(self, points: list[Point]) -> int:
        """Return the bytes of the largest point: its tensors, and the reference's in float32."""
        return max(self._held([point]) for point in points)

    def _points(self) -> list[Point]:
        return [batch.point for batch in self._kept.values()]

    def _held(self, points: list[Point]) -> int:
        return sum(self._bytes(point) * (self._copies(point) + 3) for point in points)

    def _bytes(self, point: Point) -> int:
        made = self._inputs.outputs(self._problem, point, "meta")
        # A layer's inputs are about as large as four outputs.
        counted = [*made.values(), *4 * [made["out"]]]
        return sum(int(tensor.numel() * tensor.element_size()) for tensor in counted)

    def _copies(self, point: Point) -> int:
        return min(LAUNCHES, math.ceil(_CACHES * self._l2_bytes / self._bytes(point)))

    def _make(self, point: Point) -> ScanBatch:
        problem, device = self._problem, self._device
        prompt = self._inputs.make_prompt(problem, point, device=device, seed=self._seed)
        expected = self._inputs.reference(problem, point, prompt, **self._kernels.differs)
        fixed = self._inputs.layout(problem, point, device)
        copies = []
        for at in range(self._copies(point)):
            copies.append(self._copy(prompt if at == 0 else prompt.clone(), point, expected, fixed))
        return ScanBatch(problem, point, expected, copies)

    def _copy(
        self,
        prompt: Any,  # noqa: ANN401  # of the family
        point: Point,
        expected: dict[str, Tensor],
        fixed: dict[str, Tensor],
    ) -> dict[str, Tensor]:
        made = self._inputs.outputs(self._problem, point, self._device)
        for name, tensor in made.items():
            tensor.copy_(expected[name])
        return {**self._inputs.views(self._problem, prompt), **fixed, **made}


def written(problem: ScanProblem, launches: list[ScanLaunch], point: Point) -> set[str]:
    """Return the names of the tensors that a point's kernels write."""
    pointers = [
        argument.operand or name
        for launch in launches
        for name, argument in launch.binding.arguments.items()
        if isinstance(argument, Pointer)
    ]
    return set(kernel_of(problem, point.part).writes) & {*pointers}
