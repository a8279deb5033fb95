"""Logarithmic axes: where a value lies, and which values get a tick."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
_FINE = tuple(n / 10 for n in range(10, 100))
_FEWEST = 3  # ticks of an axis, where the finest steps give as many


@dataclass(frozen=True)
class LogScale:
    """Maps values from `low` to `high` (both above zero) to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value above zero."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values on the axis: as few as say enough."""
        for steps in (*_STEPS, _FINE):
            found = self._ticks(steps)
            if len(found) >= _FEWEST:
                break
        every = math.ceil(len(found) / 7)
        return found[::every]

    def _ticks(self, steps: Sequence[float]) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        values = (step * 10.0**power for power in range(first, last + 1) for step in steps)
        return [value for value in values if self.low <= value <= self.high]


def log_scale(values: Iterable[float], start: float, end: float, room: float = 1.12) -> LogScale:
    """An axis that holds all values, with a factor of `room` on both sides."""
    some = list(values)
    low, high = min(some) / room, max(some) * room
    if high / low < 1.5:  # one value, or values that are nearly equal
        low, high = low / 1.3, high * 1.3
    return LogScale(low, high, start, end)


def number_text(value: float) -> str:
    """A tick's number: 0.25, 7.5, 1024, 20k, 3M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 10 * unit or (unit > 1e3 and value >= unit):
            return f"{value / unit:.3g}{name}"
    return f"{value:.4g}"
