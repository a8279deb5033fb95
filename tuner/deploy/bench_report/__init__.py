"""Compare benchmark results before and after tuning, at equal load."""

from __future__ import annotations

from pathlib import Path

from tuner.deploy.bench_report.plot import (
    comparison_charts,
    headline,
    render_page,
    render_picture,
    render_run_page,
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
    """Write summary.html, .svg and .csv under `out`; `run` names the run, e.g. by its file.

    Raises UnwritableOutput.
    """
    charts = summary_charts(summary)
    files = {
        "summary.html": render_run_page(summary, charts, title, run),
        "summary.svg": svg_text(render_picture(charts, title, run)),
        "summary.csv": summary_csv(summary),
    }
    write_all(out, {out / name: text.encode() for name, text in files.items()})


def write_report(comparison: Comparison, out: Path, before: str, after: str, title: str) -> None:
    """Write report.html, .svg and .csv under `out`. Raises UnwritableOutput."""
    charts = comparison_charts(comparison)
    picture = render_picture(charts, title, f"{before} to {after}. {headline(comparison)}")
    files = {
        "report.html": render_page(comparison, charts, title, before, after),
        "report.svg": svg_text(picture),
        "report.csv": render_csv(comparison),
    }
    write_all(out, {out / name: text.encode() for name, text in files.items()})
