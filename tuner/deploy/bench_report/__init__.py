"""Compare benchmark results before and after tuning, at equal load."""

from __future__ import annotations

import json
from pathlib import Path

from tuner.deploy.bench_report.compare import Comparison, compare
from tuner.deploy.bench_report.page import render_page
from tuner.deploy.bench_report.plot import render_svg
from tuner.deploy.bench_report.readers import read_results, read_samples
from tuner.deploy.bench_report.summary import (
    Summary,
    render_summary,
    summarise,
    summary_csv,
    summary_dict,
    summary_markdown,
)
from tuner.deploy.bench_report.tables import as_dict, render_csv, render_text, save_runs, write_all

__all__ = [
    "as_dict",
    "compare",
    "read_results",
    "read_samples",
    "render_summary",
    "render_text",
    "save_runs",
    "summarise",
    "summary_dict",
    "write_report",
    "write_summary",
]


def write_summary(summary: Summary, out: Path) -> list[Path]:
    """Write summary.csv, summary.md, summary.json and summary.txt under `out`.

    Raises UnwritableOutput.
    """
    texts = {
        out / "summary.csv": summary_csv(summary),
        out / "summary.md": summary_markdown(summary),
        out / "summary.json": json.dumps(summary_dict(summary), indent=2) + "\n",
        out / "summary.txt": render_summary(summary),
    }
    write_all(texts)
    return list(texts)


def write_report(comparison: Comparison, out: Path, before: str, after: str) -> list[Path]:
    """Write report.html, report.svg, report.csv, report.json and report.txt under `out`.

    Raises UnwritableOutput.
    """
    texts = {
        out / "report.html": render_page(comparison, before, after),
        out / "report.svg": render_svg(comparison),
        out / "report.csv": render_csv(comparison),
        out / "report.json": json.dumps(as_dict(comparison), indent=2) + "\n",
        out / "report.txt": render_text(comparison),
    }
    write_all(texts)
    return list(texts)
