"""Loads that belong on one axis: those of equal lengths, by concurrency or by request rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.deploy.bench_report.samples import Key, LoadKind

_ALIKE = 1.25  # random prompts have other mean lengths at each concurrency


@dataclass(frozen=True)
class Loads:
    """The loads of one picture, by their place on its x axis."""

    title: str  # what they have in common; may be empty
    x_label: str
    keys: dict[float, Key]
    x_names: dict[float, str]


def loads_of(keys: Iterable[Key]) -> list[Loads]:
    """The loads in groups. In one group no two have one place on the axis."""
    groups: list[list[Key]] = []
    for key in sorted(
        keys, key=lambda k: (k.load is LoadKind.DECODE, k.input_len, k.output_len, k)
    ):
        group = next((one for one in groups if _joins(key, one)), None)
        if group is None:
            groups.append([key])
        else:
            group.append(key)
    return [_loads(group) for group in groups]


def _joins(key: Key, group: list[Key]) -> bool:
    first = group[0]
    return (
        key.load is first.load
        and _axis(key) == _axis(first)
        and _near(key.input_len, first.input_len)
        and _near(key.output_len, first.output_len)
        and (bool(_rate(key)) or key.request_rate == first.request_rate)
        and all(_place(key) != _place(other) for other in group)
    )


def _near(one: int, other: int) -> bool:
    return max(one, other) <= min(one, other) * _ALIKE


def _axis(key: Key) -> str:
    if key.load is LoadKind.DECODE:
        return "running requests"
    if key.concurrency:
        return "concurrency (requests in flight)"
    return "requests per second" if _rate(key) else "all requests at once"


def _rate(key: Key) -> float:
    """The request rate where it is what was varied; 0 elsewhere."""
    if key.concurrency:
        return 0.0
    try:
        rate = float(key.request_rate or 0)
    except ValueError:  # "trace"
        return 0.0
    return rate if math.isfinite(rate) and rate > 0 else 0.0


def _place(key: Key) -> float:
    return float(key.concurrency or _rate(key) or 1)


def _loads(group: list[Key]) -> Loads:
    keys = {_place(key): key for key in sorted(group, key=_place)}
    first = group[0]
    parts = []
    if first.output_len:
        inputs, outputs = ({getattr(k, n) for k in group} for n in ("input_len", "output_len"))
        about = "about " if len(inputs) > 1 or len(outputs) > 1 else ""
        parts.append(f"{about}{max(inputs)}+{max(outputs)} tokens")
    if first.concurrency and first.request_rate not in ("", "inf"):
        parts.append(f"{first.request_rate} req/s")
    names = {place: f"{place:g}" for place in keys}
    if not first.concurrency and not _rate(first):
        names = {1.0: "all"}
    return Loads(", ".join(parts), _axis(first), keys, names)
