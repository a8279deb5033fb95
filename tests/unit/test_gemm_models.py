"""From what people name to the dense GEMMs of one rank."""

import pytest
from cases import L40S

from tuner.errors import BadProblem
from tuner.families.dense_gemm import models
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.models.serving import Resolved, Serving
from tuner.problems.dtypes import Dtype

WARNING = (
    "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not "
    "found at /sgl/configs/N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,"
    "block_shape=[128, 128].json"
)
# benchmarks/kernels and engines' own lists name these for DeepSeek-R1 with a tp of 8.
R1 = [
    *((2112, 7168), (3072, 1536), (4096, 512), (7168, 2048)),
    *((4608, 7168), (7168, 2304), (512, 7168), (7168, 256)),
]


def resolved(text: str, **how: object) -> Resolved:
    return models.resolve(text, Serving(device=L40S, **how))


def shapes(found: Resolved) -> list[tuple[int, int]]:
    return [(p.N, p.K) for p in found.problems if isinstance(p, DenseGemm)]


def test_a_rank_of_a_model_has_each_shape_once():
    found = resolved("deepseek-r1", tp=8, options={"fuse_shared": False})
    assert shapes(found) == R1
    assert {p.block for p in found.problems} == {(128, 128)}
    assert found.notes[0].startswith("8 shapes of 8 linear layers of a rank: self_attn.")


def test_data_parallel_attention_leaves_its_layers_whole():
    found = shapes(resolved("deepseek-r1", tp=8, options={"dp": 8}))
    assert (24576, 1536) in found  # q_b_proj of all heads
    assert (4608, 7168) in found  # the dense layers are still shared


def test_a_warning_line_names_a_whole_problem():
    assert models.reads(WARNING)
    found = resolved(WARNING)
    assert [p.spec() for p in found.problems] == [
        "block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128"
    ]
    assert found.device_name == "NVIDIA_L40S"
    assert not models.reads("Config file not found at E=256,N=64,device_name=NVIDIA_L40S.json")


def test_the_checkpoints_own_type_keeps_its_blocks():
    assert resolved("deepseek-r1", tp=8, dtype=Dtype.FP8_W8A8).problems == (
        resolved("deepseek-r1", tp=8).problems
    )


def test_a_type_that_no_kernel_has_is_refused():
    with pytest.raises(BadProblem, match="fp8_w8a8 or int8_w8a8, not int4_w4a16"):
        resolved("deepseek-r1", tp=8, dtype=Dtype.INT4_W4A16)
