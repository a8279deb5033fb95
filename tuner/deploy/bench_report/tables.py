"""Render results as text, CSV and JSON values: a table of one side, and a comparison of two."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.deploy.bench_report.samples import (
    LATENCY_NAME,
    Comparison,
    Key,
    LoadKind,
    Pair,
    Sample,
    Spread,
    grouped,
    metric_order,
    spread,
)
from tuner.render import gain_text, table

# The table shows the first metric of each group that was measured; JSON has all.
_SHOWN = (
    ("mean_ttft_ms", "median_ttft_ms"),
    ("mean_tpot_ms", "median_tpot_ms", "mean_itl_ms", "median_itl_ms"),
    ("input_throughput",),
    ("output_throughput", "decode_throughput"),
)


@dataclass(frozen=True)
class Summary:
    """The median of each metric at each load, by lengths and then by concurrency."""

    rows: Mapping[Key, Mapping[str, Spread]]

    @property
    def metrics(self) -> list[str]:
        """Return all metrics that were measured, in the order of reports."""
        return sorted({name for row in self.rows.values() for name in row}, key=metric_order)


def summarise(samples: Iterable[Sample]) -> Summary:
    """Group the samples by load and metric."""
    groups: dict[Key, dict[str, list[float]]] = {}
    for (key, name), some in grouped(samples).items():
        groups.setdefault(key, {})[name] = [one.value for one in some]
    ordered = sorted(groups, key=lambda k: (k.load, k.input_len, k.output_len, k.concurrency, k))
    return Summary({k: {name: spread(v) for name, v in groups[k].items()} for k in ordered})


def summary_rows(summary: Summary) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headers of the table, and a row for each load."""
    names = shown_metrics(summary.metrics)
    head = ("load", "tokens", *map(_head, names), "runs")
    rows = [
        (*_labels(key), *_cells(row, names), str(max(one.n for one in row.values())))
        for key, row in summary.rows.items()
    ]
    return head, rows


def render_summary(summary: Summary) -> str:
    """Return the summary as an aligned table."""
    head, rows = summary_rows(summary)
    return table(head, rows, right=head[2:], rule=False) + "\n"


def summary_dict(summary: Summary) -> dict[str, Any]:
    """Return values for JSON."""
    rows = [
        {**asdict(key), "metrics": {name: asdict(row[name]) for name in row}}
        for key, row in summary.rows.items()
    ]
    return {"loads": rows}


def shown_metrics(measured: Collection[str]) -> list[str]:
    """Return the first metric of each kind that was measured."""
    chosen = [next((name for name in group if name in measured), "") for group in _SHOWN]
    return [name for name in chosen if name]


def _head(name: str) -> str:
    """Return the header of a metric: mean TTFT ms, output tok/s."""
    if match := LATENCY_NAME.fullmatch(name):
        return f"{match[1]} {match[2].upper()} ms"
    return f"{name.removesuffix('_throughput')} tok/s"


def _labels(key: Key) -> tuple[str, str]:
    tokens = f"{key.input_len}+{key.output_len}" if key.output_len else "-"
    rate = f" {key.request_rate}/s" if key.request_rate not in ("", "inf") else ""
    running = " running" if key.load is LoadKind.DECODE else ""
    return f"{key.concurrency or 'any'}{running}{rate}", tokens


def _cells(row: Mapping[str, Spread], names: Sequence[str]) -> list[str]:
    return [f"{row[name].median:,.2f}" if name in row else "-" for name in names]


def render_text(comparison: Comparison, *, every: bool = True) -> str:
    """Return an aligned table. A gain above 1 is better in every row.

    Unless `every`, it has only the metrics of a run's own table, and a line counts the others.
    """
    named = shown_metrics({p.metric.name for p in comparison.pairs})
    pairs = [p for p in comparison.pairs if every or not named or p.metric.name in named]
    others = len({p.metric.name for p in comparison.pairs} - {p.metric.name for p in pairs})
    head = ("metric", "load", "before", "after", "gain", "spread", "n")
    rows = [
        (
            f"{p.metric.title} ({p.metric.unit})",
            str(p.key),
            _number(p.before.median),
            _number(p.after.median),
            gain_text(p.gain) + (" ?" if p.failed else ""),
            spread_text(p),
            f"{p.before.n}/{p.after.n}",
        )
        for p in pairs
    ]
    lines = [table(head, rows, right=head[2:], rule=False)]
    lines += unpaired(comparison)
    if others:
        lines.append(f"{others} other metric{'s' * (others > 1)}: --all-metrics")
    if any(p.failed for p in pairs):
        lines.append("?: requests failed, and the figures are of the others")
    lines.append("gain: above 1 is better for throughput and latency alike; cut, not rounded")
    return "\n".join(lines) + "\n"


def spread_text(pair: Pair) -> str:
    """Return the range of the gain, or a dash for a single run on each side."""
    if pair.before.n == pair.after.n == 1:
        return "-"
    return f"{gain_text(pair.gain_low)}-{gain_text(pair.gain_high)}"


def unpaired(comparison: Comparison) -> list[str]:
    """Return lines that list the loads measured on one side only."""
    sides = (("before", comparison.only_before), ("after", comparison.only_after))
    return [f"only {side}: {'; '.join(map(str, keys))}" for side, keys in sides if keys]


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Return values for JSON; `gain_text` is the gain as tables show it."""
    pairs = [{**asdict(p), "gain_text": gain_text(p.gain)} for p in comparison.pairs]
    return {
        "pairs": pairs,
        "only_before": [asdict(k) for k in comparison.only_before],
        "only_after": [asdict(k) for k in comparison.only_after],
    }


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 10_000 else f"{value:,.0f}"
