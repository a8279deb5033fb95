"""The short form of `make chaos`: everything is killed at random, nothing is lost or done twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(400)
def test_nothing_is_lost_or_done_twice() -> None:
    options = ["--jobs", "40", "--clients", "4", "--workers", "2", "--every", "4", "--limit", "300"]
    script = ROOT / "benchmarks" / "chaos.py"
    run = subprocess.run(
        [sys.executable, script, *options], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "| jobs accepted over HTTP | 40 |" in run.stdout
    assert "Redis flushed and restarted; PostgreSQL crashed and restarted" in run.stdout
