from __future__ import annotations

from toy_family.problem import Scale
from tuner.pictures.place import Place
from tuner.problems.points import Point


def place(problem: Scale, point: Point) -> Place:
    return Place("scale", point.batch_size, "rows")
