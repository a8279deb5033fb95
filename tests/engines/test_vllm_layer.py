"""vLLM's own layer with an exported file: its loader, its launcher and its kernels, interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_vllm import VERSIONS

PROGRAM = Path(__file__).with_name("interpret_vllm_layer.py")
# The second gemm's inputs are rounded to 16 or 8 bits, which the float32 reference does not do.
TOLERANCE = {"fp16": 0.002, "fp8": 0.06}


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_the_layer_is_right_with_the_file_that_it_reads(version):
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(PROGRAM), version]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 4
    for case, row in found.items():
        assert row["file is read"], case
        assert row["tuned"] <= TOLERANCE[case.split()[0]], case
        assert row["tuned"] <= row["default"] * 1.05, case
