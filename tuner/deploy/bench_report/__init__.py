"""Compare benchmark results before and after tuning, at equal load."""

from __future__ import annotations

from pathlib import Path

from tuner.deploy.bench_report.plot import (
    comparison_charts,
    headline,
    render_picture,
    summary_charts,
)
from tuner.deploy.bench_report.readers import read_results, read_samples
from tuner.deploy.bench_report.samples import Comparison, compare
from tuner.deploy.bench_report.tables import (
    Summary,
    as_dict,
    render_csv,
    render_summary,
    render_text,
    summarise,
    summary_csv,
    summary_dict,
)
from tuner.draw.svg import svg_text
from tuner.export.files import write_all

__all__ = [
    "as_dict",
    "compare",
    "read_results",
    "read_samples",
    "render_summary",
    "render_text",
    "summarise",
    "summary_dict",
    "write_report",
    "write_summary",
]


def write_summary(summary: Summary, out: Path, run: str, title: str) -> None:
    """Write summary.svg and summary.csv under `out`; `run` names the run, e.g. by its file.

    Raises UnwritableOutput.
    """
    picture = render_picture(summary_charts(summary), title, run)
    _write(out, "summary", svg_text(picture), summary_csv(summary))


def write_report(comparison: Comparison, out: Path, before: str, after: str, title: str) -> None:
    """Write report.svg and report.csv under `out`. Raises UnwritableOutput."""
    sides = f"{before} to {after}. {headline(comparison)}"
    picture = render_picture(comparison_charts(comparison), title, sides)
    _write(out, "report", svg_text(picture), render_csv(comparison))


def _write(out: Path, name: str, svg: str, table: str) -> None:
    write_all(out, {out / f"{name}.svg": svg.encode(), out / f"{name}.csv": table.encode()})
