"""What a run tried at one point: two parameters against each other, and the best time of each pair.

A pair is drawn as a cell of a table, whose shade and text say how fast it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.problems.results import Status

SHADES = 5  # the fastest is 0
_FIRST = ("BLOCK_SIZE_M", "BLOCK_SIZE_N")


@dataclass(frozen=True)
class TrialCell:
    """The trials with two values: the best time, or why none has one."""

    count: int
    best_us: float | None
    shade: int | None
    status: str  # of the best trial
    shared_bytes: int | None  # of the best trial, or the least that did not fit


@dataclass(frozen=True)
class TrialMap:
    """A table of pairs: rows are values of `down`, columns are values of `across`."""

    names: Sequence[str]  # parameters that may be chosen
    across: str
    down: str
    columns: Sequence[int]
    rows: Mapping[int, Mapping[int, TrialCell]]
    count: int
    best_us: float | None


def map_of(trials: Sequence[Mapping[str, Any]], across: str, down: str) -> TrialMap | None:
    """The map of some trials of one point; None where no two parameters vary."""
    values: dict[str, set[int]] = defaultdict(set)
    for trial in trials:
        for name, value in trial["config"].items():
            values[name].add(value)
    names = sorted(name for name, some in values.items() if len(some) > 1)
    if len(names) < 2:
        return None
    across = across if across in names else next((n for n in _FIRST if n in names), names[0])
    others = [name for name in names if name != across]
    down = down if down in others else next((n for n in _FIRST[::-1] if n in others), others[0])
    pairs: dict[int, dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        config = trial["config"]
        if across in config and down in config:
            pairs[config[down]][config[across]].append(trial)
    times = [trial["median_us"] for trial in trials if trial["median_us"] is not None]
    best = min(times, default=None)
    rows = {
        value: {at: _pair(some, best) for at, some in by_column.items()}
        for value, by_column in sorted(pairs.items())
    }
    columns = sorted({at for by_column in rows.values() for at in by_column})
    return TrialMap(names, across, down, columns, rows, len(trials), best)


def _pair(trials: Sequence[Mapping[str, Any]], best_us: float | None) -> TrialCell:
    timed = [trial for trial in trials if trial["median_us"] is not None]
    if timed:
        best = min(timed, key=lambda trial: trial["median_us"])
        shade = _shade(best["median_us"], best_us or best["median_us"])
        return TrialCell(
            len(trials),
            best["median_us"],
            shade,
            Status(best["status"]).value,
            best["shared_bytes"],
        )
    first = min(trials, key=lambda trial: trial["shared_bytes"] or 1 << 40)
    return TrialCell(len(trials), None, None, Status(first["status"]).value, first["shared_bytes"])


def _shade(time_us: float, best_us: float) -> int:
    """0 within a tenth of the best time; the darkest from twice the time on."""
    slower = time_us / best_us
    limits = (1.1, 1.3, 1.6, 2.0)
    return next((shade for shade, limit in enumerate(limits) if slower <= limit), SHADES - 1)
