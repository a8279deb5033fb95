"""Compare benchmark results before and after tuning, at equal load."""

from __future__ import annotations

from tuner.deploy.bench_report.readers import read_results, read_samples
from tuner.deploy.bench_report.samples import compare
from tuner.deploy.bench_report.tables import (
    as_dict,
    render_summary,
    render_text,
    summarise,
    summary_dict,
)

__all__ = [
    "as_dict",
    "compare",
    "read_results",
    "read_samples",
    "render_summary",
    "render_text",
    "summarise",
    "summary_dict",
]
