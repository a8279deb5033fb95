"""Measure candidates: as for any chunked scan."""

from __future__ import annotations

from typing import Any

from tuner.families.scans.gpu import ScanOnGpu
from tuner.families.scans.scan import ScanProblem


def open_session(problem: ScanProblem, request: dict[str, Any]) -> ScanOnGpu:
    return ScanOnGpu(problem, request)
