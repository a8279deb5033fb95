"""Bound kernels run by Triton's interpreter, and compared with a dense reference.

Outputs start as NaN, routings are ragged, scales differ from row to row: a wrong stride, a
wrong pointer or an element left unwritten shows. bf16 operands come out wrong in the
interpreter, so unquantised activations are fp16 here; the outputs of quantised ones are bf16.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from interpret_fused_moe import CASES

from tuner.problems import Gemm

PROGRAM = Path(__file__).with_name("interpret_fused_moe.py")
VERSIONS = ("0.4.4", "0.5.2", "0.5.12", "0.5.16", "0.5.23")
TOLERANCE = {"bf16": 2**-7, "fp16": 2**-9}  # one unit in the last place, as the interpreter cuts
ABSENT = {  # cases that a version's kernels have nothing for
    "0.4.4": (
        "fp8 channel",
        "int8 groups",
        "int8 groups zero",
        "int4",
        "int4 zero",
        "fp8 block tma",
    ),
    "0.5.2": ("fp8 block tma",),
}


@cache
def errors(version, folder):
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(PROGRAM), version, folder]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("gemm", [gemm.value for gemm in Gemm])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_bound_kernel_computes_the_dense_product(version, case, gemm, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "lifted"
    error = errors(version, str(folder))[f"{case} {gemm}"]
    if case in ABSENT.get(version, ()):
        assert version in error  # refused, by name
    else:
        assert error <= TOLERANCE[CASES[case][2]]
