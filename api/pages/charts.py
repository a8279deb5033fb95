"""Line charts with logarithmic axes: where each mark and line is drawn, in units of the drawing.

A template draws them as SVG, so they need no script. The tables beside them have the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 620.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 14.0, 26.0, 44.0
_LETTER = 7.5  # the width of a digit of a label


@dataclass(frozen=True)
class Mark:
    """One value of a series."""

    x: float
    y: float
    text: str  # what a pointer on it shows


@dataclass(frozen=True)
class Tick:
    """A label of an axis, and where its line is."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """A series. `kind` is the class that gives it its colour, dashes and shape."""

    name: str
    kind: str
    marks: Sequence[Mark]

    @property
    def path(self) -> str:
        """The series as the path of an SVG."""
        steps = (f"{mark.x:.1f} {mark.y:.1f}" for mark in self.marks)
        return "M" + " L".join(steps)


@dataclass(frozen=True)
class Chart:
    """A chart of times by size."""

    title: str
    lines: Sequence[Line]
    across: Sequence[Tick]
    up: Sequence[Tick]
    places: Mapping[str, float]  # where each size is
    low: float  # the times, in microseconds, at the bottom and at the top
    high: float
    width: float = WIDTH
    height: float = HEIGHT
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    highest: float = _TOP + 4  # where `high` is
    bottom: float = HEIGHT - _BOTTOM


def chart_of(
    title: str,
    series: Mapping[tuple[str, str], Mapping[str, float]],
    below: float = 1.0,
) -> Chart | None:
    """A chart of series by (name, kind), each with times in microseconds by the label of a size.

    Sizes that are numbers stand where their logarithm is; others at equal distances. There is room
    for times that are shorter by the factor `below`. None without any time.
    """
    labels = list(dict.fromkeys(label for values in series.values() for label in values))
    times = [time for values in series.values() for time in values.values()]
    if not times:
        return None
    shortest = min(times) / below
    across, up = _across(labels), _Scale.of([*times, shortest], HEIGHT - _BOTTOM, Chart.highest)
    lines = [
        Line(
            name,
            kind,
            [
                Mark(across[label], up.at(time), f"{name}, {label}: {time:,.4g} µs")
                for label, time in sorted(values.items(), key=lambda one: across[one[0]])
            ],
        )
        for (name, kind), values in series.items()
        if values
    ]
    return Chart(title, lines, _labels(across), up.ticks(), across, up.low, up.high)


def _labels(across: Mapping[str, float]) -> list[Tick]:
    """The labels for which there is room."""
    ticks: list[Tick] = []
    free_from = -math.inf
    for label, at in sorted(across.items(), key=lambda one: one[1]):
        half = _LETTER * len(label) / 2 + 4
        if at - half >= free_from:
            ticks.append(Tick(at, label))
            free_from = at + half
    return ticks


def _across(labels: Sequence[str]) -> Mapping[str, float]:
    first, last = _LEFT + 12, WIDTH - _RIGHT - 12
    if all(label.isdigit() and int(label) for label in labels) and len(labels) > 1:
        scale = _Scale.of([int(label) for label in labels], first, last, room=1.0)
        return {label: scale.at(int(label)) for label in labels}
    step = (last - first) / max(1, len(labels) - 1)
    return {label: first + step * number for number, label in enumerate(labels)}


@dataclass(frozen=True)
class _Scale:
    """From values to places, by their logarithm."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float, room: float = 1.15) -> _Scale:
        least = min(value for value in (*values, math.inf) if value > 0)
        most = max(max(values), least)
        if least == most:
            room = 2.0
        return cls(least / room, most * room, start, end)

    def at(self, value: float) -> float:
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[Tick]:
        """Labels at 1, 2 and 5 times a power of ten; fewer where there are many powers."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1,) if len(powers) > 4 else (1, 2, 5)
        values = [step * 10.0**power for power in powers for step in steps]
        return [Tick(self.at(v), f"{v:,.10g}") for v in values if self.low <= v <= self.high]
