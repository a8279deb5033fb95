"""vLLM's kernels, bound as its own launcher launches them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from cases import config
from interpreter import interpreted
from real_vllm import LAYER, RELEASES, VERSIONS, functions
from tiers import only

from tuner.bindings.vllm.fused_moe.binding import VLLMMoeKernels, lift_fused_moe
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.errors import BadProblem, UnsupportedKernel
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.kernels.binding import ABSENT, Constant, Integer, Pointer
from tuner.problems.points import Config
from tuner.problems.registry import parse_problem

SM89, SM90, SM100 = cuda_target(8, 9), cuda_target(9, 0), cuda_target(10, 0)
BLOCKS = "dtype=fp8_w8a8,block_shape=128x128"
FP8: FusedMoe = parse_problem(f"fused_moe:E=256,N=256,K=7168,top_k=8,{BLOCKS}")
BF16: FusedMoe = parse_problem("fused_moe:E=128,N=768,K=2048,top_k=8,dtype=bfloat16")
INT4: FusedMoe = parse_problem(
    "fused_moe:E=8,N=256,K=512,top_k=2,dtype=int4_w4a16,block_shape=0x128"
)
CONFIG = config(16, 64, 128, group=8)


@pytest.fixture(scope="module", params=RELEASES)
def version(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def kernels(version: str) -> VLLMMoeKernels:
    return lift_fused_moe(find_engine(f"vllm=={version}"))


def test_k_is_split_nowhere_and_its_block_is_capped(kernels):
    wide = kernels.bind(FP8, Gemm.UP, 64, CONFIG.replace(BLOCK_SIZE_K=256), SM90).arguments
    assert wide["BLOCK_SIZE_K"] == Constant(128)
    assert kernels.bind(BF16, Gemm.UP, 64, CONFIG.replace(BLOCK_SIZE_K=256), SM90).arguments[
        "BLOCK_SIZE_K"
    ] == Constant(256)
    assert wide.get("SPLIT_K", Constant(1)) == Constant(1)


@pytest.mark.parametrize("target", [SM89, SM90, SM100], ids=lambda target: target.name)
@pytest.mark.parametrize("problem", [FP8, BF16], ids=["fp8", "bf16"])
def test_operands_are_swapped_on_hopper_for_narrow_tiles_of_fp8(version, kernels, problem, target):
    for m, n in ((16, 64), (16, 32), (64, 64), (32, 128)):
        found = kernels.bind(problem, Gemm.UP, 64, config(m, n, 128), target).arguments
        swaps = problem is FP8 and target is SM90 and m < 64 <= n
        if version == "0.33.0":
            assert found["SWAP_AB"] == Constant(swaps)
            assert found["USE_TD"] == Constant(False)  # only VLLM_TRITON_USE_TD asks for it
        else:
            assert "SWAP_AB" not in found


def assignment(version: str) -> Callable[..., Any] | None:
    """The release's own rule for whether slots are sorted; None where they always are, or where
    the rule is not a function.
    """
    if version not in ("0.24.0", "0.33.0"):
        return None
    name = "_prepare_expert_assignment"
    names = {"moe_align_block_size": lambda *args, **kwargs: "sorted"}
    return functions(version, f"{LAYER}/fused_moe.py", {name}, names)[name]


@pytest.mark.parametrize("problem", [FP8, BF16], ids=["fp8", "bf16"])
def test_few_slots_are_not_sorted(version, kernels, problem):
    rule = assignment(version)
    for size in (1, 3, 4, 5, 7, 8, 9, 64):
        found = kernels.bind(problem, Gemm.UP, size, CONFIG, SM90)
        unsorted = found.arguments["sorted_token_ids_ptr"] == ABSENT
        assert unsorted or isinstance(found.arguments["sorted_token_ids_ptr"], Pointer)
        assert found.arguments.get("naive_block_assignment", Constant(False)) == Constant(unsorted)
        if rule is not None:
            ids = SimpleNamespace(view=lambda n: "ids", numel=lambda: 1, device="")
            theirs = rule(ids, CONFIG, size, problem.top_k, problem.E, None)
            assert unsorted is (theirs != "sorted")
        elif version == "0.10.2":
            assert not unsorted
        else:
            assert unsorted is (size * problem.top_k * 4 <= problem.E)
        if unsorted:
            assert found.arguments["EM"] == Integer(size * problem.top_k * 16)


def test_int4_is_run_by_a_compiled_kernel_for_few_tokens(version, kernels):
    entry = CONFIG.replace(BLOCK_SIZE_K=64)
    if version != "0.10.2":  # the launcher sets SPLIT_K for the other kernel alone
        with pytest.raises(UnsupportedKernel, match="fused_moe_kernel_gptq_awq needs 'SPLIT_K'"):
            kernels.bind(INT4, Gemm.UP, 4096, entry, SM89)
        entry = entry.replace(SPLIT_K=1)
    grouped = kernels.bind(INT4, Gemm.UP, 4096, entry, SM89)
    assert grouped.function == "fused_moe_kernel_gptq_awq"
    assert grouped.arguments["use_int4_w4a16"] == Constant(True)
    with pytest.raises(UnsupportedKernel, match="runs a compiled kernel for .*M=1"):
        kernels.bind(INT4, Gemm.UP, 1, CONFIG, SM89)


def test_keys_that_would_stop_a_server_are_refused(version, kernels):
    with pytest.raises(UnsupportedKernel, match=f"vllm {version}: .* no config key 'USE_TMA'"):
        kernels.bind(FP8, Gemm.UP, 16, CONFIG.replace(USE_TMA=1), SM90)
    with pytest.raises(UnsupportedKernel, match="did you mean 'num_warps'"):
        kernels.bind(FP8, Gemm.UP, 16, CONFIG.replace(num_wraps=4), SM90)
    with pytest.raises(UnsupportedKernel, match="needs GROUP_SIZE_M"):
        ungrouped = Config({k: v for k, v in CONFIG.items() if k != "GROUP_SIZE_M"})
        kernels.bind(FP8, Gemm.UP, 16, ungrouped, SM90)
    with pytest.raises(UnsupportedKernel, match="needs a BLOCK_SIZE_N of at least 1, not 0"):
        kernels.bind(FP8, Gemm.UP, 16, CONFIG.replace(BLOCK_SIZE_N=0), SM90)
    with pytest.raises(BadProblem, match="at least 1"):
        kernels.bind(FP8, Gemm.UP, 0, CONFIG, SM90)
    entry = CONFIG.replace(SPLIT_K=1)
    if version != "0.10.2":  # its kernel has no SPLIT_K
        assert kernels.bind(FP8, Gemm.UP, 16, entry, SM90).arguments["SPLIT_K"] == Constant(1)
    else:
        with pytest.raises(UnsupportedKernel, match="no config key 'SPLIT_K'"):
            kernels.bind(FP8, Gemm.UP, 16, entry, SM90)


def test_all_sizes_share_two_kernels(kernels):
    """One for M * top_k that are multiples of 16, and one for others; and two of unsorted slots."""
    sizes = (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 48, 96, 1536, 4096)
    keys = {kernels.bind(FP8, Gemm.UP, size, CONFIG, SM90).variant().key for size in sizes}
    assert len(keys) <= 4


# vLLM's own layer with an exported file, interpreted

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
