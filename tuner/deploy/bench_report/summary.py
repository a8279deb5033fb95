"""The results of one side alone, as a table with a row for each load."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.deploy.bench_report.compare import Spread, spread
from tuner.deploy.bench_report.samples import Key, LoadKind, Sample, metric, metric_order
from tuner.render import table

# The table shows the first metric of each group that was measured; the CSV file has all.
_SHOWN = (
    ("mean_ttft_ms", "median_ttft_ms"),
    ("mean_tpot_ms", "median_tpot_ms", "mean_itl_ms", "median_itl_ms"),
    ("input_throughput",),
    ("output_throughput", "decode_throughput"),
)
_HEADS = {
    "mean_ttft_ms": "mean TTFT ms",
    "median_ttft_ms": "median TTFT ms",
    "mean_tpot_ms": "mean TPOT ms",
    "median_tpot_ms": "median TPOT ms",
    "mean_itl_ms": "mean ITL ms",
    "median_itl_ms": "median ITL ms",
    "input_throughput": "input tok/s",
    "output_throughput": "output tok/s",
    "decode_throughput": "decode tok/s",
}
_LOAD = ("concurrency", "input_len", "output_len", "request_rate")


@dataclass(frozen=True)
class Summary:
    """The median of each metric at each load, by lengths and then by concurrency."""

    rows: Mapping[Key, Mapping[str, Spread]]

    @property
    def metrics(self) -> list[str]:
        """All metrics that were measured, in the order of reports."""
        return sorted({name for row in self.rows.values() for name in row}, key=metric_order)


def summarise(samples: Iterable[Sample]) -> Summary:
    """Group the samples by load and metric."""
    groups: dict[Key, dict[str, list[float]]] = {}
    for sample in samples:
        groups.setdefault(sample.key, {}).setdefault(sample.metric, []).append(sample.value)
    ordered = sorted(groups, key=lambda k: (k.load, k.input_len, k.output_len, k.concurrency, k))
    return Summary({k: {name: spread(v) for name, v in groups[k].items()} for k in ordered})


def summary_rows(summary: Summary) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The headers of the table, and a row for each load."""
    names = shown_metrics(summary.metrics)
    head = ("load", "tokens", *(_HEADS[name] for name in names), "runs")
    rows = [(*_labels(key), *_cells(row, names), _runs(key, row)) for key, row in _items(summary)]
    return head, rows


def render_summary(summary: Summary) -> str:
    """The summary as an aligned table."""
    head, rows = summary_rows(summary)
    return table(head, rows, right=head[2:], rule=False) + "\n"


def summary_markdown(summary: Summary) -> str:
    """The summary as a markdown table; `read_samples` reads it back."""
    heads = {"ms": "ms", "tok/s": "tokens/s", "req/s": "requests/s"}
    names = shown_metrics(summary.metrics)
    columns = ["Concurrency"]
    for name in names:
        known = metric(name)
        assert known is not None  # readers keep known metrics alone
        title = _HEADS[name].removesuffix(f" {known.unit}")
        throughput = "" if known.unit == "ms" else " throughput"
        columns.append(f"{title[:1].upper()}{title[1:]}{throughput} ({heads[known.unit]})")
    columns += ["Mean input len", "Mean output len"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for key, row in _items(summary):
        cells = [str(key.concurrency), *_cells(row, names, commas=False)]
        lines.append(f"| {' | '.join([*cells, str(key.input_len), str(key.output_len)])} |")
    return "\n".join(lines) + "\n"


def summary_csv(summary: Summary) -> str:
    """One row for each load, with all metrics in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_LOAD, *summary.metrics])
    for key, row in _items(summary):
        load = [getattr(key, name) for name in _LOAD]
        writer.writerow([*load, *(row[n].median if n in row else "" for n in summary.metrics)])
    return out.getvalue()


def summary_dict(summary: Summary) -> dict[str, Any]:
    """Values for JSON."""
    rows = [
        {**asdict(key), "metrics": {name: asdict(row[name]) for name in row}}
        for key, row in _items(summary)
    ]
    return {"loads": rows}


def _items(summary: Summary) -> Sequence[tuple[Key, Mapping[str, Spread]]]:
    return list(summary.rows.items())


def shown_metrics(measured: Collection[str]) -> list[str]:
    """The first metric of each kind that was measured."""
    chosen = [next((name for name in group if name in measured), "") for group in _SHOWN]
    return [name for name in chosen if name]


def _labels(key: Key) -> tuple[str, str]:
    tokens = f"{key.input_len}+{key.output_len}" if key.output_len else "-"
    rate = f" {key.request_rate}/s" if key.request_rate not in ("", "inf") else ""
    running = " running" if key.load is LoadKind.DECODE else ""
    return f"{key.concurrency or 'any'}{running}{rate}", tokens


def _cells(row: Mapping[str, Spread], names: Sequence[str], *, commas: bool = True) -> list[str]:
    form = "{:,.2f}" if commas else "{:.2f}"
    return [form.format(row[name].median) if name in row else "-" for name in names]


def _runs(key: Key, row: Mapping[str, Spread]) -> str:
    return str(max(one.n for one in row.values()))
