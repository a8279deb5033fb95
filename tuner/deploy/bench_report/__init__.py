"""What the tuning gained: benchmark results before and after, paired by load."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tuner.deploy.bench_report.compare import Comparison, compare, cut
from tuner.deploy.bench_report.page import headline, render_page
from tuner.deploy.bench_report.plot import render_svg
from tuner.deploy.bench_report.readers import parse_samples, read_samples
from tuner.deploy.bench_report.samples import Key, Load, Sample
from tuner.deploy.bench_report.tables import as_dict, render_csv, render_text, save_runs, write_all

__all__ = [
    "Comparison",
    "Key",
    "Load",
    "Sample",
    "as_dict",
    "compare",
    "compare_files",
    "cut",
    "headline",
    "parse_samples",
    "read_samples",
    "render_csv",
    "render_page",
    "render_svg",
    "render_text",
    "save_runs",
    "write_report",
]


def compare_files(before: Iterable[Path], after: Iterable[Path]) -> Comparison:
    """Compare the results in files or folders. Raises MalformedBenchmark."""
    return compare(
        [s for path in before for s in read_samples(path)],
        [s for path in after for s in read_samples(path)],
    )


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
