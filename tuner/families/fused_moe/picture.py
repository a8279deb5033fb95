"""A fused-MoE layer's picture: a chart of each gemm, by batch size."""

from __future__ import annotations

from tuner.families.fused_moe.problem import FusedMoe
from tuner.pictures.place import Place
from tuner.problems.points import Point


def place(problem: FusedMoe, point: Point) -> Place:
    """Where a point is drawn."""
    return Place(f"{point.part.value} gemm", point.batch_size, "batch size (tokens)")
