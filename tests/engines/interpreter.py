"""Runs the programs `interpret_*.py`, whose kernels Triton's interpreter runs on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Kernels are small: threads would only wait for each other.
INTERPRET = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


def interpreted(program: str, *words: object, given: str = "") -> Any:
    """Return what a program beside this one writes as its last line, which is JSON."""
    path = Path(__file__).with_name(program)
    done = subprocess.run(
        [sys.executable, path, *map(str, words)],
        env={**os.environ, **INTERPRET},
        capture_output=True,
        text=True,
        input=given,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
