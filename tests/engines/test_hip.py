"""A HIP target is launched as the engine launches on HIP."""

from __future__ import annotations

import pytest
from cases import FP8, mi300x

from tuner.engines.engine import find_engine
from tuner.engines.sglang.attention import backend
from tuner.engines.sglang.attention.binding import lift_attention
from tuner.engines.sglang.fused_moe import binding
from tuner.engines.sglang.fused_moe.binding import lift_fused_moe
from tuner.families.attention.problem import Phase
from tuner.families.fused_moe.problem import Gemm
from tuner.kernels.binding import Pointer
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem

AMD = mi300x()


@pytest.mark.parametrize("text", ["extend_attention:q_heads=8", "decode_attention:q_heads=8"])
def test_is_launched_as_the_engine_launches_on_hip(monkeypatch, text):
    monkeypatch.setattr(backend, "architecture", lambda _: AMD.architecture)
    problem = parse_problem(f"{text},kv_heads=1,Lq=128,Lv=128,dtype=bfloat16")
    kernels = lift_attention(find_engine("sglang==0.5.16"), "hip")
    new = 128 if problem.phase is Phase.EXTEND else 1
    launches = [
        kernels.launch(problem, Point(4, stage, new, 1024), AMD.target) for stage in problem.parts
    ]
    assert launches
    for launch in launches:  # options of AMD's compiler, which the engine gives on HIP alone
        assert launch.options["matrix_instr_nonkdim"] == 16


def test_multiplies_its_own_fp8(monkeypatch):
    monkeypatch.setattr(binding, "architecture", lambda _: AMD.architecture)
    kernels = lift_fused_moe(find_engine("sglang==0.5.16"), "hip")
    tile = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
    bound = kernels.bind(FP8, Gemm.UP, 64, Config(tile), AMD.target)
    assert bound.arguments["a_ptr"] == bound.arguments["b_ptr"] == Pointer("fp8e4b8")
