"""A dense GEMM's picture: one chart, by batch size."""

from __future__ import annotations

from tuner.families.dense_gemm.problem import DenseGemm
from tuner.pictures.place import Place
from tuner.problems.points import Point


def place(problem: DenseGemm, point: Point) -> Place:
    """Where a point is drawn."""
    return Place("dense GEMM", point.batch_size, "batch size (tokens)")
