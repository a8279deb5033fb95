"""Rounds before and after, in pairs: medians, the gain and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from tuner.deploy.served.loads import Load
from tuner.deploy.served.measure import Speed

_SURE = 0.95
# Rounds below which no interval between their gains is so sure: 2 / 2^5 > 1 - _SURE.
FEWEST_ROUNDS = 6


@dataclass(frozen=True)
class Metric:
    """A column of `Speed`, and how it is shown."""

    field: str
    title: str
    more_is_better: bool

    def gain(self, before: float, after: float) -> float:
        """How many times as good it has become."""
        return after / before if self.more_is_better else before / after


METRICS = (
    Metric("prefill_tok_s", "prefill", more_is_better=True),
    Metric("decode_tok_s", "decode", more_is_better=True),
    Metric("ttft_ms", "TTFT", more_is_better=False),
    Metric("tpot_ms", "TPOT", more_is_better=False),
)


@dataclass(frozen=True)
class Gain:
    """One metric of one load, before and after. A gain above 1 is better, for times too."""

    load: Load
    metric: Metric
    before: tuple[float, ...]  # of each round
    after: tuple[float, ...]
    median: float  # of the gains of all rounds
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Return faster, slower, or same if the interval holds 1 or the rounds are too few."""
        if len(self.before) < FEWEST_ROUNDS:
            return "same"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "same"


def gains_of(load: Load, before: Sequence[Speed], after: Sequence[Speed]) -> list[Gain]:
    """The gains of a load's metrics; round `i` of one side is paired with round `i` of the other.

    A metric that a round lacks is left out.
    """
    found = []
    for metric in METRICS:
        old = [getattr(speed, metric.field) for speed in before]
        new = [getattr(speed, metric.field) for speed in after]
        if None in (*old, *new):
            continue
        ratios = [metric.gain(b, a) for b, a in zip(old, new, strict=True)]
        low, high = interval(ratios)
        found.append(Gain(load, metric, tuple(old), tuple(new), median(ratios), low, high))
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """An interval that holds the median of what the values are drawn from, in 95 of 100 cases.

    It lies between two of the values, and assumes nothing of their distribution. Fewer than
    `FEWEST_ROUNDS` values cannot be so sure: then it holds all of them. Of 7 it holds all as well,
    of 9 all but the two extremes.
    """
    ordered = sorted(values)
    n, dropped = len(ordered), 0
    # The median is below the k-th smallest value in sum(C(n, i), i < k) of 2^n cases.
    while 2 * sum(comb(n, i) for i in range(dropped + 2)) <= (1 - _SURE) * 2**n:
        dropped += 1
    return ordered[dropped], ordered[n - 1 - dropped]
