"""A state update's picture: one chart, by sequences."""

from __future__ import annotations

from tuner.families.state_update.problem import StateUpdate
from tuner.pictures.place import Place
from tuner.problems.points import Point


def place(problem: StateUpdate, point: Point) -> Place:
    """Where a point is drawn."""
    return Place("state update", point.batch_size, "sequences")
