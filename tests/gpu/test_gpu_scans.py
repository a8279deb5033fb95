"""Configurations of scans on a GPU with prompts that continue."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scan_continues.py"


def test_configurations_are_right_for_prompts_that_continue() -> None:
    command = [sys.executable, SCRIPT, "sglang==0.5.16", "--configs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert all(any(errors) for errors in found["errors"].values())
