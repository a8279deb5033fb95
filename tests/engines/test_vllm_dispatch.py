"""The rules of vLLM's dispatch.toml against the source of each release."""

from __future__ import annotations

from enum import Enum
from itertools import product
from types import SimpleNamespace

import pytest
from real_vllm import LAYER, functions, package

from tuner.devices.table import find_device
from tuner.engines.dispatch import what_runs
from tuner.engines.dispatch_table import dispatch_table
from tuner.engines.settings import of_class
from tuner.problems.registry import parse_problem

TABLE = dispatch_table("vllm")
assert TABLE
CARDS = ("A100", "L40S", "H100", "B200", "B300", "RTX 5090", "GB10")
BLOCKS = parse_problem("fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128")
WIDE = parse_problem("fused_moe:E=128,N=768,K=2048,top_k=8,dtype=bfloat16")


INT4 = parse_problem("fused_moe:E=128,N=768,K=2048,top_k=8,dtype=int4_w4a16,block_shape=0x128")
PROBLEMS = {"fp8": BLOCKS, "unquantized": WIDE, "int_wna16": INT4}
GPT_OSS, QWEN = "GptOssForCausalLM", "Qwen3_5MoeForConditionalGeneration"


class Member(str):
    __name__ = property(str)


class Names:
    """An enumeration whose members are their names."""

    def __getattr__(self, name: str) -> Member:
        return Member(name)


def preferred(release: str, oracle: str, sm: int, ep: int, architecture: str) -> list[str]:
    """The order in which the release's own functions would try its kernels."""
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
        "WNA16MoEBackend": Names(),
        "prioritize_humming": lambda order: _humming(release, order, sm),
        "kFp8Dynamic128Sym": "blocks",
        "kFp8Static128BlockSym": "blocks",
    }
    name = "_get_priority_backends"
    space = functions(release, f"{LAYER}/oracle/{oracle}.py", {name}, names)
    parallel = SimpleNamespace(ep_size=ep, dp_size=1, use_deepep_v2_kernels=False)
    activation = "SWIGLUOAI" if architecture == GPT_OSS else "SILU"
    config = SimpleNamespace(moe_parallel_config=parallel, activation=activation)
    given = {"fp8": (config, "blocks", "blocks"), "unquantized": (config,), "int_wna16": ()}
    found: list[str] = space[name](*given[oracle])
    asks = "should_auto_disable_deep_gemm"
    path = package(release) / f"{LAYER}/oracle/{oracle}.py"
    if architecture == QWEN and asks in path.read_text(encoding="utf-8"):
        wanted = {asks, "_DEEPGEMM_BLACKWELL_EXCLUDED_MODEL_TYPES"}
        rules = functions(release, "utils/deep_gemm.py", wanted, {"current_platform": platform})
        found = [one for one in found if one != "DEEPGEMM" or not rules[asks]("qwen3_5_moe_text")]
    return found


def _humming(release: str, order: list[str], sm: int) -> list[str]:
    file = "model_executor/layers/quantization/utils/humming/priority.py"
    wanted = {"prioritize_humming", "prefers_humming", "_HUMMING_PREFERRED_CAPABILITIES"}
    rules = functions(release, file, wanted, {"Enum": Enum})
    found: list[str] = rules["prioritize_humming"](order, sm)
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
    "int_wna16": {
        "FLASHINFER_TRTLLM": ("FlashInfer (TRT-LLM)", set()),  # only with its variable
        "HUMMING": ("Humming", {80, 86, 89, 90, 100, 103, 120, 121}),
        "MARLIN": ("Marlin", {80, 86, 89, 90, 100, 103, 120, 121}),
    },
}
# Activations that kernels have not: `_supports_activation` of each.
LACKS = {"unquantized": {GPT_OSS: {"FLASHINFER_TRTLLM"}}}


@pytest.mark.parametrize("release", TABLE.releases)
@pytest.mark.parametrize(
    ("oracle", "architecture"),
    [("fp8", ""), ("fp8", QWEN), ("unquantized", ""), ("unquantized", GPT_OSS), ("int_wna16", "")],
)
def test_the_first_kernel_is_the_releases_first_that_runs(oracle, architecture, release, subtests):
    known, lacks = RUNS[oracle], LACKS.get(oracle, {}).get(architecture, ())
    for card, ep in product(CARDS, (1, 8)):
        with subtests.test(card=card, ep=ep):
            device = find_device(card)
            sm = int(device.target.name.removeprefix("sm_"))
            order = preferred(release, oracle, sm, ep, architecture)
            runs = (known[name] for name in order if name in known and name not in lacks)
            theirs = next(name for name, cards in runs if sm in cards)
            flags = of_class({"--enable-expert-parallel": "1" if ep > 1 else "0"}, architecture)
            found = what_runs("vllm", release, PROBLEMS[oracle], device, flags)
            assert found.kernels[0].name == theirs


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
