"""The points of a dense GEMM that a request asks for: batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.families.dense_gemm.problem import BATCH_SIZES, Gemm
from tuner.problems.batch_sizes import SizeSelection
from tuner.problems.points import Problem


class GemmSelection(SizeSelection):
    """Batch sizes (rows of A)."""

    part = Gemm.DENSE
    default = BATCH_SIZES


def read_selection(problem: Problem, values: Mapping[str, Any]) -> GemmSelection:
    """Read the field `batch_sizes`, which may be absent. Raises BadInput."""
    sizes = values.get("batch_sizes")
    return GemmSelection(None if sizes is None else tuple(sizes))
