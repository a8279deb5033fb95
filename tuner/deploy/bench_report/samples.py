"""Benchmark values: the metrics that they belong to, and the load that they were measured at."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum


class LoadKind(str, Enum):
    """The kind of benchmark."""

    SERVING = "serving"  # a client sent requests; one value per run
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
    """One value of one run."""

    key: Key
    metric: str
    value: float
    source: str  # FILE:LINE


@dataclass(frozen=True)
class Metric:
    """A quantity, its unit, and whether higher or lower is better."""

    name: str
    title: str
    unit: str
    higher_is_better: bool

    def gain(self, before: float, after: float) -> float:
        """Return how many times as good it has become."""
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
    """The metric of that name; None for a quantity that is not about speed."""
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
    """Sort key of a metric: throughputs first, in the order above, then latencies by quantity."""
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
    """The key of a load on a server, from fields as a benchmark writes them."""
    number = number_of(rate)
    text = f"{number:g}" if number is not None else str(rate) if rate == "trace" else "inf"
    return Key(
        LoadKind.SERVING,
        whole_number(concurrency),
        whole_number(input_len),
        whole_number(output_len),
        text if rate else "",
    )


def samples_of(key: Key, values: dict[str, object], source: str) -> list[Sample]:
    """Samples of the values that are a known metric and a number in the valid range."""
    found = []
    for name, value in values.items():
        number = number_of(value)
        if number and _SMALLEST <= number <= _LARGEST and metric(name):
            found.append(Sample(key, name, number, source))
    return found


def mean(total: float | None, count: float | None) -> float | None:
    """`total` for each of `count`; None if one is missing or zero."""
    return total / count if total and count else None


def whole_number(value: object) -> int:
    """The nearest whole number; 0 for what is none."""
    number = number_of(value)
    return round(number) if number is not None and 0 <= number <= _LARGEST else 0


def number_of(value: object) -> float | None:
    """The number that a value or its text is; None if it is none, or is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
