"""Pair values measured at equal load, and compute gains."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb

from tuner.deploy.bench_report.samples import Key, LoadKind, Metric, Sample, metric, metric_order

_SURE = 0.95
# Runs below which no interval between their gains is so sure: 2 / 2^5 > 1 - _SURE.
FEWEST_RUNS = 6


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
    pairs = tuple(paired(key, name, old[key, name], new[key, name]) for key, name in shared)
    both = {key for key, _ in shared}
    return Comparison(
        pairs,
        tuple(sorted({key for key, _ in old} - both)),
        tuple(sorted({key for key, _ in new} - both)),
    )


def _grouped(samples: Iterable[Sample]) -> dict[tuple[Key, str], list[float]]:
    groups: dict[tuple[Key, str], list[float]] = {}
    for sample in samples:
        groups.setdefault((sample.key, sample.metric), []).append(sample.value)
    return groups


def paired(key: Key, name: str, before: Sequence[float], after: Sequence[float]) -> Pair:
    """Pair equal numbers of runs in order, and bound the gain by the interval of their gains.

    Otherwise the extremes bound it.

    Lines of a decode log are moments of one run, so they are not paired one to one.
    """
    known = metric(name)
    assert known is not None
    old, new = spread(before), spread(after)
    run_by_run = len(before) == len(after) and (key.load is not LoadKind.DECODE or len(before) == 1)
    if run_by_run:
        gains = [known.gain(b, a) for b, a in zip(before, after, strict=True)]
        middle, (low, high) = statistics.median(gains), interval(gains)
    else:
        worst = (old.high, new.low) if known.higher_is_better else (old.low, new.high)
        best = (old.low, new.high) if known.higher_is_better else (old.high, new.low)
        middle = known.gain(old.median, new.median)
        low, high = known.gain(*worst), known.gain(*best)
    return Pair(key, known, old, new, middle, low, high, run_by_run)


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the values' true median in 95 of 100 cases.

    It lies between two of the values, and assumes nothing of their distribution. Fewer than
    `FEWEST_RUNS` values cannot be so sure: then it holds all of them. Of 7 it holds all as well, of
    9 all but the two extremes.
    """
    ordered = sorted(values)
    n, dropped = len(ordered), 0
    # The median is below the k-th smallest value in sum(C(n, i), i < k) of 2^n cases.
    while 2 * sum(comb(n, i) for i in range(dropped + 2)) <= (1 - _SURE) * 2**n:
        dropped += 1
    return ordered[dropped], ordered[n - 1 - dropped]
