"""Attention's picture: decode by sequences, the other phases by new tokens."""

from __future__ import annotations

from tuner.families.attention.problem import Attention, Phase
from tuner.pictures.place import Place
from tuner.problems.points import Point


def place(problem: Attention, point: Point) -> Place:
    """Where a point is drawn. Decode's two kernels are one line, because the first one's splits
    are what the second one combines.
    """
    cached = f"{point.cached_tokens:,} cached tokens"
    if problem.phase is Phase.DECODE:
        return Place(f"decode, {cached}", point.batch_size, "sequences")
    sequences = f"{point.batch_size} sequence{'s' * (point.batch_size != 1)}"
    chart = f"{problem.phase.value}, {sequences}, {cached}"
    return Place(chart, point.new_tokens, "new tokens (of the longest sequence)")
