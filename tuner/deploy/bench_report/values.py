"""The numbers of benchmark results, and the samples that are made of them."""

from __future__ import annotations

import math

from tuner.deploy.bench_report.samples import Key, LoadKind, Sample, metric

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
