"""Hold benchmark values by metric and load, and compute the gain between two runs at equal load."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import comb


class LoadKind(str, Enum):
    """The kind of benchmark."""

    SERVING = "serving"  # a client sent requests; a value per run
    DECODE = "decode"  # the server's log lines; many values per run


@dataclass(frozen=True, order=True)
class Key:
    """The load that a value belongs to. Only values of equal keys are compared."""

    load: LoadKind
    concurrency: int  # most requests in flight; for decode: running requests
    input_len: int = 0  # mean tokens per request; 0: unknown
    output_len: int = 0
    request_rate: str = ""  # requests per second as given, "inf" or empty

    def __str__(self) -> str:
        if self.load is LoadKind.DECODE:
            return f"{self.concurrency} running request{'s' * (self.concurrency != 1)}"
        lengths = f", {self.input_len}+{self.output_len} tokens" if self.output_len else ""
        rate = f", {self.request_rate} req/s" if self.request_rate not in ("", "inf") else ""
        return f"concurrency {self.concurrency or 'any'}{lengths}{rate}"


@dataclass(frozen=True)
class Sample:
    """A value of a run."""

    key: Key
    metric: str
    value: float
    source: str  # FILE:LINE
    failed: int = 0  # requests of the run that failed: the value is of the others


@dataclass(frozen=True)
class Metric:
    """A quantity, its unit, and whether higher or lower is better."""

    name: str
    title: str
    unit: str
    higher_is_better: bool

    def gain(self, before: float, after: float) -> float:
        """Return the gain: how many times as good the value has become."""
        return after / before if self.higher_is_better else before / after


_THROUGHPUTS = {
    "prefill_throughput": ("Prefill throughput", "tok/s"),
    "decode_throughput": ("Decode throughput", "tok/s"),
    "output_throughput": ("Output throughput", "tok/s"),
    "total_throughput": ("Total throughput", "tok/s"),
    "input_throughput": ("Input throughput", "tok/s"),
    "request_throughput": ("Request throughput", "req/s"),
}
_LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2e": "end-to-end latency",
}
LATENCY_NAME = re.compile(r"(mean|median|max|p[0-9]{1,2})_(ttft|tpot|itl|e2e)_ms")


def metric(name: str) -> Metric | None:
    """Return the metric of that name; None for a quantity that is not about speed."""
    if name in _THROUGHPUTS:
        title, unit = _THROUGHPUTS[name]
        return Metric(name, title, unit, True)
    match = LATENCY_NAME.fullmatch(name)
    if not match:
        return None
    statistic, quantity = match.groups()
    shown = statistic.upper() if statistic.startswith("p") else statistic.capitalize()
    return Metric(name, f"{shown} {_LATENCIES[quantity]}", "ms", False)


def metric_order(name: str) -> tuple[int, str, str]:
    """Return the sort key of a metric: throughputs first, in the order above, then latencies by
    quantity.
    """
    if name in _THROUGHPUTS:
        return (list(_THROUGHPUTS).index(name), "", "")
    match = LATENCY_NAME.fullmatch(name)
    quantity, statistic = (match.group(2), match.group(1)) if match else ("", name)
    position = list(_LATENCIES).index(quantity) if quantity else len(_LATENCIES)
    return (len(_THROUGHPUTS) + position, quantity, statistic)


# Numbers outside this range are damaged, whatever their unit.
_SMALLEST, _LARGEST = 1e-6, 1e12


def serving_key(
    concurrency: object, input_len: float | None, output_len: float | None, rate: object
) -> Key:
    """Return the key of a load on a server, from fields as a benchmark writes them."""
    number = number_of(rate)
    text = f"{number:g}" if number is not None else str(rate) if rate == "trace" else "inf"
    return Key(
        LoadKind.SERVING,
        whole_number(concurrency),
        whole_number(input_len),
        whole_number(output_len),
        text if rate else "",
    )


def samples_of(key: Key, values: dict[str, object], source: str, failed: int = 0) -> list[Sample]:
    """Return samples of the values that are a known metric and a number in the valid range."""
    found = []
    for name, value in values.items():
        number = number_of(value)
        if number and _SMALLEST <= number <= _LARGEST and metric(name):
            found.append(Sample(key, name, number, source, failed))
    return found


def mean(total: float | None, count: float | None) -> float | None:
    """Return `total` for each of `count`; None if either is missing or zero."""
    return total / count if total and count else None


def whole_number(value: object) -> int:
    """Return the nearest whole number; 0 for a value that is no number."""
    number = number_of(value)
    return round(number) if number is not None and 0 <= number <= _LARGEST else 0


def number_of(value: object) -> float | None:
    """Return the number of a value or of its text; None if it is no number, or is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


_SURE = 0.95
# Runs below which no interval between their gains is so sure: 2 / 2^5 > 1 - _SURE.
FEWEST_RUNS = 6


@dataclass(frozen=True)
class Spread:
    """The values of a metric at a load."""

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
    run_by_run: bool  # whether runs were paired in order for the gain
    failed: int = 0  # requests that failed on either side

    @property
    def verdict(self) -> str:
        """Return better, worse, or unclear: the gain's range includes 1, or requests failed."""
        if self.failed:
            return "unclear"
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
    keys = _Loads()
    old, new = _grouped(before, keys), _grouped(after, keys)
    shared = sorted(old.keys() & new.keys(), key=lambda g: (metric_order(g[1]), g[0]))
    pairs = tuple(_compared(key, name, old[key, name], new[key, name]) for key, name in shared)
    both = {key for key, _ in shared}
    return Comparison(
        pairs,
        tuple(sorted({key for key, _ in old} - both)),
        tuple(sorted({key for key, _ in new} - both)),
    )


SAME_LENGTH = 0.02  # mean lengths of a load differ by less from run to run


class _Loads:
    """Unites loads whose mean lengths are nearly equal, under the load that was seen first."""

    def __init__(self) -> None:
        self._seen: dict[Key, Key] = {}

    def of(self, key: Key) -> Key:
        if key not in self._seen:
            near = (one for one in self._seen.values() if _same_load(one, key))
            self._seen[key] = next(near, key)
        return self._seen[key]


def _same_load(one: Key, other: Key) -> bool:
    if replace(one, input_len=0, output_len=0) != replace(other, input_len=0, output_len=0):
        return False
    lengths = ((one.input_len, other.input_len), (one.output_len, other.output_len))
    return all(
        a == b or (a and b and abs(a - b) <= max(1, SAME_LENGTH * min(a, b))) for a, b in lengths
    )


def grouped(samples: Iterable[Sample]) -> dict[tuple[Key, str], list[Sample]]:
    """Return samples by load and metric."""
    return _grouped(samples, _Loads())


def _grouped(samples: Iterable[Sample], loads: _Loads) -> dict[tuple[Key, str], list[Sample]]:
    groups: dict[tuple[Key, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((loads.of(sample.key), sample.metric), []).append(sample)
    return groups


def _compared(key: Key, name: str, before: Sequence[Sample], after: Sequence[Sample]) -> Pair:
    pair = paired(key, name, [one.value for one in before], [one.value for one in after])
    return replace(pair, failed=sum(one.failed for one in (*before, *after)))


def paired(key: Key, name: str, before: Sequence[float], after: Sequence[float]) -> Pair:
    """Pair equal numbers of runs in order, and bound the gain by the interval of their gains.

    Otherwise the extremes bound the gain. Lines of a decode log are moments of the same run, so
    they are not paired in order.
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
    """Return median and extremes of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the values' true median in 95 of 100 cases.

    The interval lies between two of the values, and assumes nothing of their distribution. Fewer
    than `FEWEST_RUNS` values cannot be so sure: then it holds all of them. It also holds all of 7
    values, and all of 9 values but the two extremes.
    """
    ordered, dropped = sorted(values), _dropped(len(values))
    return ordered[dropped], ordered[len(values) - 1 - dropped]


def missed(n: int) -> float:
    """Return how likely an `interval` of `n` values misses their true median, from 0 to 1."""
    return _below(n, _dropped(n))


def _dropped(n: int) -> int:
    """Return how many of `n` values the interval leaves out at each end."""
    dropped = 0
    while _below(n, dropped + 1) <= 1 - _SURE:
        dropped += 1
    return dropped


def _below(n: int, dropped: int) -> float:
    # The median is below the k-th smallest value in sum(C(n, i), i < k) of 2^n cases.
    return sum(comb(n, i) for i in range(dropped + 1)) / 2.0 ** (n - 1)
