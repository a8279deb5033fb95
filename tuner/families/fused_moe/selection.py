"""The points of a fused-MoE layer that a request asks for: batch sizes and gemms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tuner.errors import BadInput
from tuner.families.fused_moe.problem import BATCH_SIZES, Gemm
from tuner.problems.batch_sizes import checked_sizes
from tuner.problems.options import Names
from tuner.problems.points import Point, Problem

GEMMS = Names(Gemm)


@dataclass(frozen=True)
class MoeSelection:
    """Batch sizes (tokens) and gemms of a layer. Raises BadInput for impossible values."""

    batch_sizes: tuple[int, ...] | None = None  # None: the engine's, or the recording's
    gemms: tuple[Gemm, ...] = tuple(Gemm)

    def __post_init__(self) -> None:
        if self.batch_sizes is not None:
            object.__setattr__(self, "batch_sizes", checked_sizes(self.batch_sizes))
        if not self.gemms:
            raise BadInput("a job needs at least one gemm: up, down, or both")

    @property
    def given(self) -> bool:
        return self.batch_sizes is not None

    def points(self, problem: Problem) -> frozenset[Point]:
        return _points(self.batch_sizes or BATCH_SIZES, self.gemms)

    def as_json(self) -> dict[str, Any]:
        return {
            "batch_sizes": None if self.batch_sizes is None else list(self.batch_sizes),
            "gemms": [gemm.value for gemm in self.gemms],
        }


@lru_cache(maxsize=64)  # pages of coverage ask for each request, and most are alike
def _points(sizes: tuple[int, ...], gemms: tuple[Gemm, ...]) -> frozenset[Point]:
    return frozenset(Point(size, gemm) for size in sizes for gemm in gemms)


def read_selection(problem: Problem, values: Mapping[str, Any]) -> MoeSelection:
    """Read the fields `batch_sizes` and `gemms`, which may be absent. Raises BadInput."""
    sizes, gemms = values.get("batch_sizes"), values.get("gemms")
    return MoeSelection(
        batch_sizes=None if sizes is None else tuple(sizes),
        gemms=tuple(Gemm) if gemms is None else GEMMS.members(gemms),
    )
