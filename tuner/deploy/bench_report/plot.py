"""Draw one run, or two runs before and after, as charts on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.deploy.bench_report.samples import Comparison, Key, LoadKind, Spread, metric
from tuner.deploy.bench_report.tables import Summary
from tuner.draw.chart import WIDTH, Chart, Row, Series, Spot, draw_chart, draw_rows
from tuner.draw.shapes import Colour, Drawing, heading, stack
from tuner.render import gain_text

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


# Each group gets a chart of its first metric that was measured. Others are only in the table.
_LATENCIES = (
    ("median_ttft_ms", "mean_ttft_ms"),
    ("median_tpot_ms", "mean_tpot_ms", "median_itl_ms", "mean_itl_ms"),
    ("median_e2e_ms", "mean_e2e_ms"),
)
_SHOWN = (("output_throughput",), ("decode_throughput",), *_LATENCIES)

Measured = Mapping[Key, Mapping[str, Spread]]


@dataclass(frozen=True)
class _Side:
    """One run, or several of one kind."""

    name: str
    colour: Colour
    values: Measured


def comparison_charts(comparison: Comparison) -> list[Drawing]:
    """A chart of each metric with both sides and the gain, for the loads of both sides."""
    before: dict[Key, dict[str, Spread]] = {}
    after: dict[Key, dict[str, Spread]] = {}
    gains: dict[tuple[Key, str], float] = {}
    for pair in comparison.pairs:
        before.setdefault(pair.key, {})[pair.metric.name] = pair.before
        after.setdefault(pair.key, {})[pair.metric.name] = pair.after
        gains[pair.key, pair.metric.name] = pair.gain
    sides = [_Side("before", Colour.FIRST, before), _Side("after", Colour.SECOND, after)]
    return _charts(sides, gains)


def summary_charts(summary: Summary) -> list[Drawing]:
    """A chart of each metric of one run."""
    return _charts([_Side("this run", Colour.SECOND, summary.rows)], {})


def report_picture(comparison: Comparison, title: str, before: str, after: str) -> Drawing:
    """The picture of two runs; `before` and `after` name them, e.g. by their files."""
    about = f"{before} to {after}. {headline(comparison)}"
    return stack([heading(title, about, WIDTH), *comparison_charts(comparison)], title)


def summary_picture(summary: Summary, title: str, run: str) -> Drawing:
    """The picture of one run, which `run` names."""
    return stack([heading(title, run, WIDTH), *summary_charts(summary)], title)


def _charts(sides: Sequence[_Side], gains: Mapping[tuple[Key, str], float]) -> list[Drawing]:
    keys = {key for side in sides for key in side.values}
    measured = {name for side in sides for row in side.values.values() for name in row}
    names = [next((n for n in group if n in measured), "") for group in _SHOWN]
    shown = [name for name in names if name] or sorted(measured)[:1]
    drawn: list[Drawing] = []
    for loads in loads_of(keys):
        if len(loads.keys) == 1:
            drawn.append(_at_one_load(loads, sides, gains, shown))
            continue
        charts = [
            *(_by_load(name, loads, sides, gains) for name in shown),
            _against_latency(loads, sides),
        ]
        drawn += [draw_chart(chart) for chart in charts if chart]
    return drawn


def _at_one_load(
    loads: Loads,
    sides: Sequence[_Side],
    gains: Mapping[tuple[Key, str], float],
    shown: Sequence[str],
) -> Drawing:
    """The metrics as rows, because one load makes no line."""
    ((_, key),) = loads.keys.items()
    rows = []
    for name in shown:
        values = [_row(side, key).get(name) for side in sides]
        known = metric(name)
        if known is None or None in values:
            continue
        words = " to ".join(f"{_number(one.median)}" for one in values if one)
        rows.append(Row(known.title, f"{words} {known.unit}", gains.get((key, name))))
    return draw_rows(str(key), rows)


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def _by_load(
    name: str, loads: Loads, sides: Sequence[_Side], gains: Mapping[tuple[Key, str], float]
) -> Chart | None:
    """One metric at each load; None where none of these loads has it."""
    known = metric(name)
    assert known is not None  # readers keep known metrics alone
    mine = {x: key for x, key in loads.keys.items() if all(name in _row(s, key) for s in sides)}
    if not mine:
        return None
    series = [
        Series(
            side.name,
            side.colour,
            tuple(_spot(x, side.values[key][name]) for x, key in mine.items()),
        )
        for side in sides
    ]
    direction = "higher is better" if known.higher_is_better else "lower is better"
    return Chart(
        title=_titled(known.title, loads),
        x_label=loads.x_label,
        y_label=f"{known.unit}, {direction}",
        series=tuple(series),
        gains={x: gains[key, name] for x, key in mine.items() if (key, name) in gains},
        x_names={x: loads.x_names[x] for x in mine},
    )


def _against_latency(loads: Loads, sides: Sequence[_Side]) -> Chart | None:
    """Output throughput against a latency; None where they were measured at one load or none."""
    rows = [_row(side, key) for side in sides for key in loads.keys.values()]
    measured = set.intersection(*(set(row) for row in rows))
    ttft, tpot, e2e = _LATENCIES
    latency = next((name for name in (*tpot, *e2e, *ttft) if name in measured), "")
    known = metric(latency)
    if known is None or "output_throughput" not in measured or len(loads.keys) < 2:
        return None
    series = []
    for side in sides:
        spots = []
        for x, key in loads.keys.items():
            row = side.values[key]
            place = row[latency].median, row["output_throughput"].median
            spots.append(Spot(*place, tip=str(key), label=loads.x_names[x]))
        series.append(Series(side.name, side.colour, tuple(spots)))
    return Chart(
        title=_titled("Throughput against latency", loads),
        x_label=f"{known.title}, ms",
        y_label=f"output tok/s; the numbers are {loads.x_label.partition(' (')[0]}",
        series=tuple(series),
    )


def _row(side: _Side, key: Key) -> Mapping[str, Spread]:
    return side.values.get(key, {})


def _spot(x: float, value: Spread) -> Spot:
    several = value.n > 1
    tip = f"{value.median:,.2f}" + (f" ({value.low:,.2f} to {value.high:,.2f})" if several else "")
    low, high = (value.low, value.high) if several else (None, None)
    return Spot(x, value.median, tip=tip, low=low, high=high)


def _titled(words: str, loads: Loads) -> str:
    return f"{words}, {loads.title}" if loads.title else words


def headline(comparison: Comparison) -> str:
    """The gain in the first metric, as one sentence."""
    if not comparison.pairs:
        return "No load was measured on both sides."
    first = comparison.pairs[0].metric
    pairs = [p for p in comparison.pairs if p.metric == first]
    gains = sorted(p.gain for p in pairs)
    reach = (
        gain_text(gains[0])
        if len(gains) == 1
        else f"{gain_text(gains[0])} to {gain_text(gains[-1])}"
    )
    loads = "one load" if len(pairs) == 1 else f"{len(pairs)} loads"
    return f"{first.title}: {reach} over {loads}."
