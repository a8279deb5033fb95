"""Compare benchmark results before and after tuning, at equal load."""

from __future__ import annotations

import json
from pathlib import Path

from tuner.deploy.bench_report.compare import Comparison, compare
from tuner.deploy.bench_report.page import headline, render_page, render_run_page
from tuner.deploy.bench_report.plot import comparison_charts, render_picture, summary_charts
from tuner.deploy.bench_report.readers import RunDetails, read_origin, read_results, read_samples
from tuner.deploy.bench_report.tables import (
    Summary,
    as_dict,
    render_csv,
    render_summary,
    render_text,
    save_runs,
    summarise,
    summary_csv,
    summary_dict,
    summary_markdown,
)
from tuner.draw.files import picture_files
from tuner.export.files import write_all

__all__ = [
    "RunDetails",
    "as_dict",
    "compare",
    "read_origin",
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


def write_summary(summary: Summary, out: Path, run: str, origin: RunDetails) -> list[Path]:
    """Write summary.csv, .md, .json, .txt, .html, .svg and (with Pillow) .png under `out`.

    `run` names the run, e.g. by its file. Raises UnwritableOutput.
    """
    title, charts = origin.title or "Benchmark", summary_charts(summary)
    picture = render_picture(charts, title, run)
    files = {
        "summary.csv": summary_csv(summary).encode(),
        "summary.md": summary_markdown(summary).encode(),
        "summary.json": (json.dumps(summary_dict(summary), indent=2) + "\n").encode(),
        "summary.txt": render_summary(summary).encode(),
        "summary.html": render_run_page(summary, charts, title, run).encode(),
        **picture_files("summary", picture),
    }
    return _write(out, files)


def write_report(
    comparison: Comparison, out: Path, before: str, after: str, origin: RunDetails
) -> list[Path]:
    """Write report.html, .svg, .csv, .json, .txt and (with Pillow) .png under `out`.

    Raises UnwritableOutput.
    """
    title = f"{origin.title or 'Benchmark'}: before and after"
    charts = comparison_charts(comparison)
    picture = render_picture(charts, title, f"{before} to {after}. {headline(comparison)}")
    files = {
        "report.html": render_page(comparison, charts, title, before, after).encode(),
        "report.csv": render_csv(comparison).encode(),
        "report.json": (json.dumps(as_dict(comparison), indent=2) + "\n").encode(),
        "report.txt": render_text(comparison).encode(),
        **picture_files("report", picture),
    }
    return _write(out, files)


def _write(out: Path, files: dict[str, bytes]) -> list[Path]:
    paths = {out / name: data for name, data in files.items()}
    write_all(out, paths)
    return list(paths)
