"""From what people name to the dense GEMMs of one rank."""

import pytest
from cases import L40S, ROOT, problems_of

from tuner.errors import BadProblem
from tuner.families.dense_gemm import models
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.models.serving import Resolved, Serving
from tuner.problems.dtypes import Dtype

# benchmarks/kernels and engines' own lists name these for DeepSeek-R1 with a tp of 8.
R1 = [
    *((2112, 7168), (3072, 1536), (4096, 512), (7168, 2048)),
    *((4608, 7168), (7168, 2304), (512, 7168), (7168, 256)),
]
SHARED = {(512, 7168), (7168, 256)}  # the shared experts' two of them


def resolved(text: str, **how: object) -> Resolved:
    return problems_of(models, text, Serving(device=L40S, **how))


def shapes(found: Resolved) -> list[tuple[int, int]]:
    return [(p.N, p.K) for p in found.problems if isinstance(p, DenseGemm)]


def test_a_rank_of_a_model_has_each_shape_once():
    found = resolved("deepseek-r1", tp=8, options={"fuse_shared": False})
    assert shapes(found) == R1
    assert {p.block for p in found.problems} == {(128, 128)}
    assert found.notes[0].startswith("the linear layers of a rank have 8 shapes: self_attn.")


def test_data_parallel_attention_leaves_its_layers_whole():
    found = shapes(resolved("deepseek-r1", tp=8, options={"dp": 8}))
    assert (24576, 1536) in found  # q_b_proj of all heads
    assert (4608, 7168) in found  # the dense layers are still shared


def test_the_checkpoints_own_type_keeps_its_blocks():
    assert resolved("deepseek-r1", tp=8, dtype=Dtype.FP8_W8A8).problems == (
        resolved("deepseek-r1", tp=8).problems
    )


def test_a_type_that_no_kernel_has_is_refused():
    with pytest.raises(BadProblem, match="fp8_w8a8 or int8_w8a8, not int4_w4a16"):
        resolved("deepseek-r1", tp=8, dtype=Dtype.INT4_W4A16)


@pytest.mark.parametrize(
    ("version", "options", "apart"),
    [
        ("0.5.16", {}, False),
        ("0.5.16", {"fuse_shared": False}, True),
        ("0.5.16", {"ep": 8}, True),
        ("0.4.4", {}, True),
    ],
)
@pytest.mark.parametrize("source", ["deepseek-r1", "config.json"])
def test_shared_experts_are_gemms_only_where_the_engine_does_not_fuse_them(
    version, options, apart, source
):
    serving = Serving(device=L40S, tp=8, engine_version=version, options=options)
    if source == "deepseek-r1":
        found = problems_of(models, source, serving)
    else:
        data = (ROOT / "tests/data/models" / "deepseek-r1" / "config.json").read_bytes()
        found = problems_of(models, data, serving)
    assert (set(shapes(found)) & SHARED) == (SHARED if apart else set())
    assert len(shapes(found)) == (9 if version == "0.4.4" else 6) + 2 * (
        apart and version != "0.4.4"
    )
    assert "linear layers of a rank" in found.notes[0]


def test_a_dense_model_has_gemms_too():
    found = problems_of(models, "qwen3-32b-fp8", Serving(device=L40S, tp=2))
    assert shapes(found) == [(5120, 5120), (5120, 4096), (25600, 5120), (5120, 12800)]


def test_a_model_in_16_bits_says_what_to_ask_for():
    with pytest.raises(BadProblem, match="--dtype fp8_w8a8"):
        problems_of(models, "qwen3-32b", Serving(device=L40S, tp=2))
    found = problems_of(models, "qwen3-32b", Serving(device=L40S, tp=2, dtype=Dtype.FP8_W8A8))
    assert all(problem.family == "channel_gemm" for problem in found.problems)
