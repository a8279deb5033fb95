"""Draw one run, or two runs before and after, as charts on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.deploy.bench_report.compare import Comparison, Spread
from tuner.deploy.bench_report.loads import Loads, loads_of
from tuner.deploy.bench_report.samples import Key, metric
from tuner.deploy.bench_report.summary import Summary
from tuner.draw.bars import Row, draw_rows
from tuner.draw.chart import WIDTH, Chart, Series, Spot, draw_chart
from tuner.draw.shapes import Colour, Drawing, heading, stack

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


def render_picture(charts: Sequence[Drawing], title: str, sides: str) -> Drawing:
    """All charts below a title, as one picture."""
    return stack([heading(title, sides, WIDTH), *charts], title)


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
