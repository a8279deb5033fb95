"""vLLM's own layer with an exported file: its loader, its launcher and its kernels, interpreted."""

from __future__ import annotations

import pytest
from interpreter import interpreted
from real_vllm import VERSIONS
from tiers import only

# The second gemm's inputs are rounded to 16 or 8 bits, which the float32 reference does not do.
TOLERANCE = {"fp16": 0.002, "fp8": 0.06}


@pytest.mark.parametrize("version", only(VERSIONS[-1:], [VERSIONS[0], VERSIONS[-1]]))
def test_the_layer_is_right_with_the_file_that_it_reads(version):
    found = interpreted("interpret_vllm_layer.py", version)
    assert len(found) == 4
    for case, row in found.items():
        assert row["file is read"], case
        assert row["tuned"] <= TOLERANCE[case.split()[0]], case
        assert row["tuned"] <= row["default"] * 1.05, case
