"""Pair values measured at equal load, and compute gains."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.deploy.bench_report.samples import Key, LoadKind, Metric, Sample, metric, metric_order


@dataclass(frozen=True)
class Spread:
    """Values of one metric at one load."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Pair:
    """A metric before and after, at equal load."""

    key: Key
    metric: Metric
    before: Spread
    after: Spread
    gain: float  # above 1 is better, for throughput and latency alike
    gain_low: float
    gain_high: float
    run_by_run: bool  # whether runs were paired one to one for the gain

    @property
    def verdict(self) -> str:
        """One of better, worse, or unclear (where the range of the gain includes 1)."""
        if self.gain_low > 1:
            return "better"
        return "worse" if self.gain_high < 1 else "unclear"


@dataclass(frozen=True)
class Comparison:
    """All pairs, and the loads measured on one side only."""

    pairs: tuple[Pair, ...]
    only_before: tuple[Key, ...]
    only_after: tuple[Key, ...]


def compare(before: Iterable[Sample], after: Iterable[Sample]) -> Comparison:
    """Pair the samples by load and metric."""
    old, new = _grouped(before), _grouped(after)
    shared = sorted(old.keys() & new.keys(), key=lambda g: (metric_order(g[1]), g[0]))
    pairs = tuple(_pair(key, name, old[key, name], new[key, name]) for key, name in shared)
    paired = {key for key, _ in shared}
    return Comparison(
        pairs,
        tuple(sorted({key for key, _ in old} - paired)),
        tuple(sorted({key for key, _ in new} - paired)),
    )


def _grouped(samples: Iterable[Sample]) -> dict[tuple[Key, str], list[float]]:
    groups: dict[tuple[Key, str], list[float]] = {}
    for sample in samples:
        groups.setdefault((sample.key, sample.metric), []).append(sample.value)
    return groups


def _pair(key: Key, name: str, before: Sequence[float], after: Sequence[float]) -> Pair:
    """Pair equal numbers of runs in order; otherwise the extremes bound the gain.

    Lines of a decode log are moments of one run, so they are not paired one to one.
    """
    known = metric(name)
    assert known is not None
    old, new = spread(before), spread(after)
    run_by_run = len(before) == len(after) and (key.load is not LoadKind.DECODE or len(before) == 1)
    if run_by_run:
        gains = [_gain(known, b, a) for b, a in zip(before, after, strict=True)]
        middle, low, high = statistics.median(gains), min(gains), max(gains)
    else:
        worst = (old.high, new.low) if known.higher_is_better else (old.low, new.high)
        best = (old.low, new.high) if known.higher_is_better else (old.high, new.low)
        middle = _gain(known, old.median, new.median)
        low, high = _gain(known, *worst), _gain(known, *best)
    return Pair(key, known, old, new, middle, low, high, run_by_run)


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def _gain(known: Metric, before: float, after: float) -> float:
    return after / before if known.higher_is_better else before / after
