"""Where a family draws a point. Each family's module `picture` has `place(problem, point)`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A place in a problem's picture.

    Points of one chart at one `x` are launched one after the other, and their times are added up.
    """

    chart: str  # the chart's title, e.g. "up gemm"
    x: float  # above zero
    x_label: str  # what the axis counts, e.g. "batch size (tokens)"
