"""A comparison as text, CSV and JSON values; and runs saved beside the bundle that they used."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuner.deploy.bench_report.compare import Comparison, Pair
from tuner.deploy.bench_report.samples import Sample
from tuner.deploy.bench_report.summary import shown_metrics
from tuner.errors import UnwritableOutput
from tuner.render import gain_text, table

_COLUMNS = (
    *("metric", "unit", "better", "load", "concurrency", "input_len", "output_len"),
    *("request_rate", "before_median", "before_min", "before_max", "before_n"),
    *("after_median", "after_min", "after_max", "after_n"),
    *("gain", "gain_min", "gain_max", "run_by_run"),
)


def render_text(comparison: Comparison, *, every: bool = True) -> str:
    """An aligned table. A gain above 1 is better in every row.

    Unless `every`, it has the metrics that the table of one run has, and a line counts the others.
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
            gain_text(p.gain),
            spread_text(p),
            f"{p.before.n}/{p.after.n}",
        )
        for p in pairs
    ]
    lines = [table(head, rows, right=head[2:], rule=False)]
    lines += unpaired(comparison)
    if others:
        lines.append(f"{others} other metric{'s' * (others > 1)}: --all-metrics")
    lines.append("gain: above 1 is better for throughput and latency alike; cut, not rounded")
    return "\n".join(lines) + "\n"


def spread_text(pair: Pair) -> str:
    """The range of the gain, or a dash for a single run on each side."""
    if pair.before.n == pair.after.n == 1:
        return "-"
    return f"{gain_text(pair.gain_low)}-{gain_text(pair.gain_high)}"


def unpaired(comparison: Comparison) -> list[str]:
    """Lines that list the loads measured on one side only."""
    sides = (("before", comparison.only_before), ("after", comparison.only_after))
    return [f"only {side}: {'; '.join(map(str, keys))}" for side, keys in sides if keys]


def render_csv(comparison: Comparison) -> str:
    """One row for each pair, in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for p in comparison.pairs:
        better = "higher" if p.metric.higher_is_better else "lower"
        writer.writerow(
            [p.metric.name, p.metric.unit, better, p.key.load.value, p.key.concurrency]
            + [p.key.input_len, p.key.output_len, p.key.request_rate]
            + [x for s in (p.before, p.after) for x in (s.median, s.low, s.high, s.n)]
            + [p.gain, p.gain_low, p.gain_high, str(p.run_by_run).lower()]
        )
    return out.getvalue()


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Values for JSON; `gain_text` is the gain as tables show it."""
    pairs = [{**asdict(p), "gain_text": gain_text(p.gain)} for p in comparison.pairs]
    return {
        "pairs": pairs,
        "only_before": [asdict(k) for k in comparison.only_before],
        "only_after": [asdict(k) for k in comparison.only_after],
    }


def save_runs(samples: Iterable[Sample], path: Path, release: str) -> None:
    """Save runs with the sha256 of their bundle (`release`); `read_samples` reads the file.

    Raises UnwritableOutput.
    """
    write_all({path: f"{runs_text(samples, release)}\n".encode()})


def runs_text(samples: Iterable[Sample], release: str) -> str:
    """Return what `save_runs` writes."""
    return json.dumps({"release": release, "samples": [asdict(s) for s in samples]})


def write_all(files: dict[Path, bytes]) -> None:
    """Write files, and create their folders. Raises UnwritableOutput."""
    for path, data in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise UnwritableOutput(f"{path} cannot be written: {error.strerror}") from None


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 10_000 else f"{value:,.0f}"


def by_metric(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The pairs of each metric, in the comparison's order."""
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.metric.name, []).append(pair)
    return groups
