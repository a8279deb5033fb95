"""The rules of vLLM's dispatch.toml against the source of each release."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from real_vllm import LAYER, functions

from tuner.devices.table import find_device
from tuner.engines.dispatch import what_runs
from tuner.engines.dispatch_table import dispatch_table
from tuner.problems.registry import parse_problem

TABLE = dispatch_table("vllm")
assert TABLE
BLOCKS = parse_problem("fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128")
WIDE = parse_problem("fused_moe:E=128,N=768,K=2048,top_k=8,dtype=bfloat16")


class Names:
    """An enumeration whose members are their names."""

    def __getattr__(self, name: str) -> str:
        return name


def preferred(release: str, oracle: str, sm: int, ep: int) -> list[str]:
    """The order in which the release's own function would try its kernels."""
    platform = SimpleNamespace(
        is_cuda=lambda: True,
        is_rocm=lambda: False,
        is_xpu=lambda: False,
        is_cpu=lambda: False,
        is_device_capability=lambda wanted: wanted == sm,
        is_device_capability_family=lambda wanted: wanted // 10 == sm // 10,
    )
    names = {
        "current_platform": platform,
        "Fp8MoeBackend": Names(),
        "UnquantizedMoeBackend": Names(),
        "MoEActivation": Names(),
        "prioritize_humming": lambda order: order,
        "kFp8Dynamic128Sym": "blocks",
        "kFp8Static128BlockSym": "blocks",
    }
    name = "_get_priority_backends"
    space = functions(release, f"{LAYER}/oracle/{oracle}.py", {name}, names)
    parallel = SimpleNamespace(ep_size=ep, dp_size=1, use_deepep_v2_kernels=False)
    config = SimpleNamespace(moe_parallel_config=parallel, activation="SILU")
    keys = ("blocks", "blocks") if oracle == "fp8" else ()
    found: list[str] = space[name](config, *keys)
    return found


# What runs on a card at all, of the kernels that the table names: `_supports_current_device` and
# `_supports_quant_scheme` of each, where all packages are installed.
RUNS = {
    "fp8": {
        "FLASHINFER_TRTLLM": ("FlashInfer (TRT-LLM)", {100, 103}),
        "FLASHINFER_CUTLASS": ("FlashInfer (CUTLASS)", {90}),
        "DEEPGEMM": ("DeepGEMM", {90, 100, 103, 120, 121}),
        "TRITON": ("Triton", {89, 90, 100, 103, 120, 121}),
        "MARLIN": ("Marlin", {80, 86, 89, 90, 100, 103, 120, 121}),
    },
    "unquantized": {
        "FLASHINFER_TRTLLM": ("FlashInfer", {100, 103}),
        "FLASHINFER_CUTLASS": ("FlashInfer", {90, 100, 103, 120, 121}),
        "TRITON": ("Triton", {80, 86, 89, 90, 100, 103, 120, 121}),
    },
}


@pytest.mark.parametrize("release", TABLE.releases)
@pytest.mark.parametrize("ep", [1, 8])
@pytest.mark.parametrize("card", ["A100", "L40S", "H100", "B200", "B300", "RTX 5090", "GB10"])
@pytest.mark.parametrize("oracle", ["fp8", "unquantized"])
def test_the_first_kernel_is_the_releases_first_that_runs(oracle, card, ep, release):
    device = find_device(card)
    sm = int(device.target.name.removeprefix("sm_"))
    known = RUNS[oracle]
    order = preferred(release, oracle, sm, ep)
    theirs = next(known[name][0] for name in order if name in known and sm in known[name][1])
    flags = {"--enable-expert-parallel": "1" if ep > 1 else "0"}
    runs = what_runs("vllm", release, BLOCKS if oracle == "fp8" else WIDE, device, flags)
    assert runs.kernels[0].name == theirs


DELTA = parse_problem("gated_delta:key_heads=16,value_heads=32,key_dim=128,value_dim=128")


@pytest.mark.parametrize("release", TABLE.releases)
@pytest.mark.parametrize(
    ("card", "flags", "kernels"),
    [
        ("H100", {}, ["FlashInfer"]),
        ("H100", {"--gdn-prefill-backend": "triton"}, ["Triton"]),
        ("L40S", {}, ["Triton"]),
        ("B200", {}, ["FlashInfer", "Triton"]),
        ("B200", {"--gdn-prefill-backend": "cutedsl"}, ["CuteDSL", "Triton"]),
        ("MI300X", {}, {"0.24.0": ["Triton"], "0.33.0": ["AITER", "Triton"]}),
        ("RTX PRO 6000", {}, {"0.24.0": ["Triton"], "0.33.0": ["FlashInfer", "Triton"]}),
    ],
)
def test_gated_deltas_run_in_triton_where_nothing_else_does(card, flags, kernels, release):
    found = what_runs("vllm", release, DELTA, find_device(card), flags)
    assert found
    wanted = kernels[release] if isinstance(kernels, dict) else kernels
    assert [one.name for one in found.kernels] == wanted


GEMM = parse_problem("block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128")
INVARIANT = {"VLLM_BATCH_INVARIANT": "1"}


@pytest.mark.parametrize(
    ("release", "card", "flags", "kernels"),
    [
        ("0.24.0", "A100", {}, ["Marlin"]),
        ("0.33.0", "A100", {}, ["Marlin"]),
        ("0.24.0", "L40S", {}, ["Triton"]),  # Marlin there only with VLLM_TEST_FORCE_FP8_MARLIN
        ("0.33.0", "L40S", {}, ["Marlin"]),
        ("0.33.0", "L40S", INVARIANT, ["Triton"]),
        ("0.33.0", "H100", INVARIANT, ["DeepGEMM", "CUTLASS"]),  # no kernel is forced on CUDA
        ("0.24.0", "MI300X", INVARIANT, ["AITER", "Triton"]),
        ("0.33.0", "MI300X", INVARIANT, ["Triton"]),
    ],
)
def test_marlin_runs_dense_blocks_where_the_release_lets_it(release, card, flags, kernels):
    found = what_runs("vllm", release, GEMM, find_device(card), flags)
    assert found
    assert [one.name for one in found.kernels] == kernels


@pytest.mark.parametrize(("card", "other"), [("RTX PRO 6000", "FlashInfer"), ("MI300X", "AITER")])
def test_a_release_between_is_in_doubt_where_the_next_one_runs_another_kernel(card, other):
    """0.32.0 never runs AITER by itself here, and 0.29.0 has no FlashInfer for sm_120."""
    found = what_runs("vllm", "0.29.0", DELTA, find_device(card))
    assert found and found.without_us() is None
    assert f"(by the rules of 0.24.0; 0.33.0 runs {other} if " in found.line()
