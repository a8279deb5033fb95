"""Which kernel an engine runs: how rules are read, and what they answer for known cards."""

import json
import re
from dataclasses import fields
from itertools import product

import pytest
from checkpoints import config_json
from tiers import only

from tuner.devices.table import find_device
from tuner.engines.dispatch import Runs, engine_runs, seen_to_run, what_runs
from tuner.engines.dispatch_table import UnknownFact
from tuner.engines.engine import release_of
from tuner.engines.settings import flags_of, of_class, of_model
from tuner.families.dense_gemm.problem import DENSE_GEMMS, parse_dense_gemm
from tuner.families.fused_moe.models import problems
from tuner.files import shipped_toml
from tuner.models.serving import Serving
from tuner.models.table import find_model
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Problem, title_of
from tuner.problems.registry import parse_problem, problem_names

RELEASES = ("0.5.16", "0.5.23")
CARDS = (
    *("A100", "L40S", "L20", "RTX 4090", "H100", "H20", "H200", "B200"),
    *("RTX PRO 6000", "RTX 5090"),
)
FP8 = "block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128"
QKV_A = "block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128"  # N is no multiple of 128
FP8_32 = "block_gemm:N=2048,K=2048,dtype=fp8_w8a8,block=32x32"
INT8 = "block_gemm:N=2112,K=7168,dtype=int8_w8a8,block=128x128"
CHANNEL_FP8 = "channel_gemm:N=7168,K=2048,dtype=fp8_w8a8"
CHANNEL_INT8 = "channel_gemm:N=7168,K=2048,dtype=int8_w8a8"
MOE = "fused_moe:E=256,N=256,K=7168,top_k=8,dtype="
MOE_FP8 = f"{MOE}fp8_w8a8,block_shape=128x128"
MOE_BF16 = f"{MOE}bfloat16"
MOE_INT8 = f"{MOE}int8_w8a8,per_channel_quant"
MOE_INT4 = f"{MOE}int4_w4a16,block_shape=0x128"
MLA = "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
MLA_EXTEND = "extend_attention:q_heads=16,kv_heads=16,Lq=192,Lv=128,dtype=bfloat16"
MHA = "extend_attention:q_heads=8,kv_heads=2,Lq=128,Lv=128,dtype=bfloat16"
SINKS = f"{MHA},sinks"
ASYMMETRIC = "extend_attention:q_heads=16,kv_heads=8,Lq=192,Lv=128,dtype=bfloat16"
DELTA = "gated_delta:key_heads=16,value_heads=32,key_dim=128,value_dim=128"
IMAGE = "prefill_attention:q_heads=8,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16"
PROBLEMS = (
    *(FP8, QKV_A, FP8_32, INT8, CHANNEL_FP8, CHANNEL_INT8),
    *(MOE_FP8, MOE_BF16, MOE_INT8, MOE_INT4, MLA, MLA_EXTEND, MHA, SINKS, IMAGE),
)


def problem_of(text: str) -> Problem:
    dense = text.partition(":")[0] in DENSE_GEMMS
    return parse_dense_gemm(text) if dense else parse_problem(text)


GEMMA = "extend_attention:q_heads=16,kv_heads=2,Lq=256,Lv=256,dtype=bfloat16"


def test_the_model_s_class_settles_what_runs(subtests):
    """Read from the releases' overrides by model class."""
    for version, device, problem, architecture, kernels in (
        ("0.5.16", "H100", GEMMA, "Gemma4ForConditionalGeneration", ["Triton"]),
        ("0.5.16", "B200", GEMMA, "Gemma4ForConditionalGeneration", ["FlashInfer"]),
        ("0.5.16", "H100", GEMMA, "Gemma3ForConditionalGeneration", ["FlashAttention 3"]),
        ("0.5.16", "H100", GEMMA, "", ["FlashAttention 3"]),
        ("0.5.16", "H100", GEMMA.replace("256", "512"), "", ["Triton", "FlashAttention 3"]),
        ("0.5.23", "L40S", MHA, "Llama4ForCausalLM", ["Triton"]),
        ("0.5.23", "L40S", MHA, "Qwen3ForCausalLM", ["FlashInfer", "Triton"]),
        ("0.5.23", "L40S", MHA, "Olmo2ForCausalLM", ["FlashAttention 3"]),
        ("0.5.16", "B200", MHA, "Step3p5ForCausalLM", ["FlashAttention 4"]),
        ("0.5.16", "B200", MHA, "NemotronHForCausalLM", ["FlashInfer"]),
        ("0.5.16", "B200", MHA, "MiniMaxM3SparseForCausalLM", ["FlashAttention 4"]),
        ("0.5.16", "H100", MLA, "DeepseekV32ForCausalLM", ["DeepSeek Sparse Attention"]),
        ("0.5.16", "B200", MLA, "DeepseekV3ForCausalLM", ["FlashInfer"]),
        ("0.5.16", "B200", MOE_FP8, "MixtralForCausalLM", ["Triton"]),
        ("0.5.16", "B200", MOE_BF16, "Qwen3MoeForCausalLM", ["FlashInfer"]),
        ("0.5.16", "H100", MOE_BF16, "NemotronHForCausalLM", ["FlashInfer"]),
    ):
        with subtests.test(version=version, device=device, architecture=architecture):
            found = asked(version, device, problem, of_class({}, architecture))
            assert [one.name.partition(" (")[0] for one in found.kernels] == kernels
            assert "architecture" not in found.line()
    # A flag does make such servers run Triton, so the line must not say that no option does.
    for flags, reads in (({}, False), ({"--attention-backend": "triton"}, True)):
        found = asked("0.5.16", "H100", MLA, of_class(flags, "DeepseekV32ForCausalLM"))
        assert found.always_triton is reads
        assert "no option" not in found.line()
    flags = of_class({"--attention-backend": "fa3"}, "Gemma4ForCausalLM")
    assert names("0.5.16", "H100", GEMMA, flags) == ["FlashAttention 3"]


def test_how_the_checkpoint_is_stored_settles_what_runs(subtests, tmp_path):
    """Read from the methods that the releases give to layers of experts."""

    def weights(bits: int, kind: str, **of_weights: object) -> dict[str, object]:
        group = {"weights": {"num_bits": bits, "type": kind, "strategy": "channel", **of_weights}}
        if not of_weights:
            group["input_activations"] = {"num_bits": 8, "type": kind, "dynamic": True}
        return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}

    int4 = weights(4, "int", strategy="group", group_size=32, symmetric=True)
    asymmetric = weights(4, "int", strategy="group", group_size=32, symmetric=False)
    modelopt = {"quant_method": "modelopt", "quant_algo": "FP8"}
    awq, gptq = ({"quant_method": name, "bits": 4, "group_size": 128} for name in ("awq", "gptq"))
    rounded = gptq | {"quant_method": "auto-round"}
    qwen, nemotron = "Qwen3MoeForCausalLM", "NemotronHForCausalLM"
    wna16 = {"--quantization": "moe_wna16"}
    runner = {"--moe-runner-backend": "triton"}
    for release, device, architecture, stored, columns, kernels, to_triton in (
        ("sglang 0.5.16", "L40S", qwen, weights(8, "int"), 384, ["Triton"], {}),
        ("sglang 0.5.23", "H100", qwen, {"quant_method": "w8a8_int8"}, 384, ["Triton"], {}),
        ("sglang 0.5.16", "H100", qwen, int4, 384, ["Marlin"], runner),
        ("sglang 0.5.23", "H100", qwen, int4, 384, ["Marlin"], runner),
        ("sglang 0.5.23", "H100", qwen, asymmetric, 384, ["Marlin"], {}),
        ("sglang 0.5.23", "B200", qwen, int4, 384, ["Triton"], {}),
        ("sglang 0.5.23", "B200", qwen, asymmetric, 384, ["Marlin"], {}),
        ("sglang 0.5.16", "B200", "DeepseekV3ForCausalLM", int4, 384, ["FlashInfer"], runner),
        ("sglang 0.5.23", "B200", "DeepseekV3ForCausalLM", int4, 384, ["FlashInfer"], runner),
        ("sglang 0.5.23", "B200", "DeepseekV3ForCausalLM", asymmetric, 384, ["Marlin"], {}),
        ("sglang 0.5.23", "MI300X", "DeepseekV3ForCausalLM", int4, 384, ["Triton"], {}),
        ("sglang 0.5.16", "H100", qwen, awq, 384, ["Marlin"], wna16),
        ("sglang 0.5.16", "H100", qwen, awq, 192, ["Triton"], {}),  # 192 holds 1.5 groups
        ("sglang 0.5.16", "H100", "Llama4ForCausalLM", awq, 384, ["Triton"], {}),
        ("sglang 0.5.16", "H100", qwen, gptq, 192, ["Marlin"], wna16),
        ("sglang 0.5.16", "H100", qwen, gptq | {"desc_act": True}, 384, ["Marlin"], {}),
        ("sglang 0.5.16", "H100", qwen, rounded, 384, ["Triton"], {}),
        ("sglang 0.5.16", "H100", qwen, rounded, 192, ["no kernel"], {}),
        ("sglang 0.5.23", "H100", qwen, rounded, 384, ["Marlin"], {}),
        ("sglang 0.5.16", "H100", nemotron, modelopt, 384, ["FlashInfer"], None),
        ("sglang 0.5.16", "H100", nemotron, weights(8, "float"), 384, ["Triton"], {}),
        ("vllm 0.33.0", "H100", qwen, weights(8, "float"), 384, ["CUTLASS"], None),
        ("vllm 0.24.0", "H100", qwen, awq, 384, ["Marlin"], {}),
        ("vllm 0.33.0", "H100", qwen, awq, 384, ["Humming", "Marlin"], {}),
        ("vllm 0.33.0", "A100", qwen, awq, 192, ["Triton's kernel for int4"], {}),
        ("vllm 0.33.0", "A100", qwen, gptq, 192, ["Triton's kernel for int4"], {}),
        ("vllm 0.33.0", "H100", qwen, {"quant_method": "fp8"}, 384, ["Triton"], {}),
        ("vllm 0.33.0", "H100", qwen, modelopt, 384, ["FlashInfer", "Triton"], None),
        ("vllm 0.33.0", "L40S", qwen, weights(8, "int"), 384, ["Triton's kernel for int8"], {}),
    ):
        with subtests.test(release=release, device=device, stored=stored, columns=columns):
            architectures = [architecture]
            data = config_json(stored, architectures=architectures, moe_intermediate_size=columns)
            engine, version = release.split()
            serving = Serving(engine=engine, engine_version=version)
            (problem,) = problems(find_model(data), serving).problems
            flags = of_model({}, data)
            found = what_runs(engine, version, problem, find_device(device), flags)
            assert found
            assert [one.name.partition(" (")[0] for one in found.kernels] == kernels
            assert to_triton is None or found.to_triton == to_triton
            stops = engine == "sglang" and stored == weights(8, "int")
            assert found.needs == ({"--quantization": "w8a8_int8"} if stops else {})
            assert "checkpoint" not in found.options
            with_it = what_runs(
                engine, version, problem, find_device(device), flags | found.to_triton
            )
            assert not found.to_triton or (with_it and with_it.always_triton)
            if found.kernels[-1].name == "Marlin" and not found.to_triton:  # as the answer says
                for hidden in (wna16, runner) if engine == "sglang" else ():
                    other = what_runs(engine, version, problem, find_device(device), flags | hidden)
                    assert other and not other.may_read, hidden


def test_a_flag_has_all_its_names():
    for name in ("--ep-size", "--ep", "--expert-parallel-size"):
        settings = of_class({name: "4"}, "GptOssForCausalLM")
        assert asked("0.5.16", "H100", MOE_BF16, settings).always_triton
    assert not asked("0.5.16", "H100", MOE_BF16, of_class({}, "GptOssForCausalLM")).always_triton


def test_flags_choose_the_kernel_of_kimis_int4_on_blackwell(subtests):
    for flags, name in (
        ({}, "FlashInfer (TRT-LLM)"),
        ({"--moe-a2a-backend": "deepep"}, "Triton"),
        ({"--moe-runner-backend": "marlin"}, "Marlin"),
        ({"--moe-runner-backend": "flashinfer_trtllm"}, "FlashInfer (TRT-LLM)"),
    ):
        with subtests.test(flags):
            settings = of_model(flags, "kimi-k2-thinking")
            problem = MOE_INT4.replace("0x128", "0x32")
            assert [one.name for one in asked("0.5.23", "B200", problem, settings).kernels] == [
                name
            ]


def test_16_bit_experts_that_a_server_quantises_as_it_loads_have_no_stored_scales(subtests):
    """Of the others nobody knows which checkpoint is served."""
    for flags, kernels in (
        ({"-q": "fp8"}, ["Triton"]),
        ({"--quantization": "fp8_per_channel"}, ["Triton"]),
        ({}, ["FlashInfer", "Triton"]),
    ):
        with subtests.test(flags):
            settings = of_model(flags, "gemma-4-26b-a4b")
            serving = Serving(engine="vllm", dtype=Dtype.FP8_W8A8)
            (problem,) = problems(find_model("gemma-4-26b-a4b"), serving).problems
            device = find_device("RTX PRO 6000 Blackwell Server Edition")
            found = what_runs("vllm", "0.33.0", problem, device, settings)
            assert found and [one.name for one in found.kernels] == kernels
    assert find_model("gemma-4-26b-a4b").stored_as == "bfloat16 none"
    config = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "hidden_size": 64}
    config |= {"intermediate_size": 512, "num_experts_per_tok": 2, "torch_dtype": "bfloat16"}
    assert find_model(json.dumps(config).encode()).stored_as == "bfloat16 none"


def test_triton_s_attention_is_not_offered_where_a_release_refuses_it(subtests):
    nemotron, lfm2, moe = "NemotronHForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM"
    for version, architecture, refused in (
        ("0.5.16", nemotron, True),
        ("0.5.23", nemotron, False),
        ("0.5.16", lfm2, True),
        ("0.5.23", lfm2, True),
        ("0.5.16", moe, False),
        ("0.5.23", moe, True),
        ("0.5.16", "Qwen3MoeForCausalLM", False),
        ("0.5.16", "", False),
    ):
        for device in ("H100", "H200"):
            with subtests.test(version=version, device=device, architecture=architecture):
                found = asked(version, device, MHA, of_class({}, architecture))
                assert (found.to_triton == {}) is refused
                assert ("--attention-backend triton the server stops" in found.line()) is refused
                given = {"--attention-backend": "triton"}
                served = asked(version, device, MHA, of_class(given, architecture))
                assert served.always_triton is not refused


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("NemotronHForCausalLM", "; 0.5.23 starts with --attention-backend triton, and"),
        ("Lfm2MoeForCausalLM", "; 0.5.23 does not start with --attention-backend triton, and"),
    ],
)
def test_a_release_between_two_may_refuse_what_one_of_them_refuses(architecture, said):
    """0.5.16 does not start with Triton's attention for Nemotron-H, and 0.5.19 does."""
    between = asked("0.5.19", "H100", MHA, of_class({}, architecture))
    assert said in between.line()
    assert between.without_us() is None


def asked(version: str, device: str, problem: str, flags: dict[str, str] | None = None) -> Runs:
    found = what_runs("sglang", version, problem_of(problem), find_device(device), flags or {})
    assert found, f"{version} says nothing of {problem} on {device}"
    return found


def names(
    version: str, device: str, problem: str, flags: dict[str, str] | None = None
) -> list[str]:
    """The kernels, in short: the words before a bracket."""
    return [
        kernel.name.partition(" (")[0] for kernel in asked(version, device, problem, flags).kernels
    ]


# What the source says: releases, cards, problem, flags, and the kernels in the order of preference.
T, D, C, F, M = "Triton", "DeepGEMM", "CUTLASS", "FlashInfer", "Marlin"
ADA, HOPPER = ("L40S", "L20", "RTX 4090"), ("H100", "H20", "H200")
RADEON = ("R9700",)
RTX_BLACKWELL = ("RTX PRO 6000", "RTX 5090")
BACKEND, RUNNER = "--fp8-gemm-backend", "--moe-runner-backend"
EXPECTED = [
    # Blocks of fp8
    (RELEASES, ADA, FP8, {}, [T]),
    (RELEASES, ("A100",), FP8, {}, [M]),
    (RELEASES, HOPPER, FP8, {}, [D, T]),
    (RELEASES, ("B200",), FP8, {}, [D, F, T]),
    (RELEASES, RTX_BLACKWELL, FP8, {}, [C]),
    (RELEASES, RTX_BLACKWELL, QKV_A, {}, [T]),
    (RELEASES, HOPPER, f"{FP8},out=float16", {}, [T]),
    (RELEASES, HOPPER, FP8, {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}, [T]),
    (("0.5.16",), HOPPER, QKV_A, {"SGL_ENABLE_JIT_DEEPGEMM": "false"}, [T]),  # its old name
    (RELEASES, (*ADA, *HOPPER, "B200", *RTX_BLACKWELL), FP8, {BACKEND: "triton"}, [T]),
    (RELEASES, HOPPER, FP8, {BACKEND: "cutlass"}, ["no kernel"]),
    (RELEASES, ADA, FP8, {BACKEND: "deep_gemm"}, ["no kernel"]),
    (RELEASES, HOPPER, FP8, {BACKEND: "flashinfer_deepgemm"}, [F]),
    (RELEASES, ADA, FP8, {"SGLANG_FORCE_FP8_MARLIN": "true"}, [M]),
    (("0.5.23",), HOPPER, FP8_32, {}, [D, T]),
    (("0.5.23",), (*ADA, "B200", *RTX_BLACKWELL), FP8_32, {}, [T]),
    # Blocks of int8
    (RELEASES, CARDS, INT8, {}, [T]),
    # Channels
    (RELEASES, (*ADA, *HOPPER, "B200", *RTX_BLACKWELL), CHANNEL_FP8, {}, [C]),
    (RELEASES, ("A100",), CHANNEL_FP8, {}, [M]),
    (RELEASES, ADA, CHANNEL_FP8, {"USE_TRITON_W8A8_FP8_KERNEL": "1"}, [T]),
    (RELEASES, ADA, "channel_gemm:N=2056,K=2048,dtype=fp8_w8a8", {}, [T]),
    (RELEASES, (*ADA, *HOPPER, "A100"), CHANNEL_INT8, {}, [C]),
    (RELEASES, ("B200", *RTX_BLACKWELL), CHANNEL_INT8, {}, ["no kernel"]),
    # Fused MoE
    (RELEASES, (*ADA, *HOPPER, "A100", *RTX_BLACKWELL), MOE_FP8, {}, [T]),
    (RELEASES, (*ADA, *HOPPER, "A100", *RTX_BLACKWELL), MOE_BF16, {}, [T]),
    (RELEASES, CARDS, MOE_INT8, {}, [T]),
    (RELEASES, ("B200",), MOE_FP8, {}, [F, T]),
    (RELEASES, ("B200",), MOE_BF16, {}, [F, T]),
    (RELEASES, ("B200",), f"{MOE}fp8_w8a8,per_channel_quant", {}, [T]),
    (RELEASES, ("B200",), MOE_FP8, {RUNNER: "triton"}, [T]),
    (RELEASES, HOPPER, MOE_FP8, {"--moe-a2a-backend": "deepep"}, [D, T]),
    (RELEASES, HOPPER, MOE_FP8, {RUNNER: "deep_gemm"}, [D]),
    (RELEASES, HOPPER, MOE_FP8, {RUNNER: "cutlass"}, [C]),
    (("0.5.16",), HOPPER, MOE_INT4, {}, [M]),
    (("0.5.16",), HOPPER, MOE_INT4, {"--quantization": "moe_wna16"}, [T]),
    # Attention
    (RELEASES, (*ADA, "A100", *RTX_BLACKWELL), MLA, {}, [T]),
    (RELEASES, (*ADA, "A100", *RTX_BLACKWELL), MLA_EXTEND, {}, [T]),
    (RELEASES, HOPPER, MLA, {}, ["FlashAttention 3"]),
    (RELEASES, HOPPER, MLA, {"--attention-backend": "triton"}, [T]),
    (RELEASES, ("B200",), MLA, {}, [F, F]),
    (RELEASES, HOPPER, MHA, {}, ["FlashAttention 3"]),
    (RELEASES, ("B200",), MHA, {}, [F]),
    (RELEASES, (*ADA, "A100", *RTX_BLACKWELL), MHA, {}, [T, F, T]),
    (RELEASES, ADA, SINKS, {}, [T]),
    (RELEASES, ADA, MHA, {"--attention-backend": "fa3"}, ["FlashAttention 3"]),
    (RELEASES, ADA, MHA, {"--attention-backend": "odd"}, ["the odd back end"]),
    (RELEASES, HOPPER, MLA, {"--decode-attention-backend": "triton"}, [T]),
    (RELEASES, HOPPER, MHA, {"--decode-attention-backend": "triton"}, ["FlashAttention 3"]),
    (RELEASES, (*ADA, "A100", *RTX_BLACKWELL), IMAGE, {}, [T]),
    (RELEASES, HOPPER, IMAGE, {}, ["FlashAttention 3"]),
    (RELEASES, ("B200",), IMAGE, {}, ["FlashAttention 4"]),
    # AMD
    (RELEASES, ("MI300X", "MI355X"), FP8, {}, ["AITER", T]),
    (RELEASES, RADEON, FP8, {"SGLANG_USE_AITER": "1"}, [T]),
    (RELEASES, RADEON, MOE_FP8, {}, [T]),
    (RELEASES, ("RX 7900 XTX", "MI210"), MOE_BF16, {}, [T]),
    (RELEASES, ("MI300X",), FP8, {"SGLANG_USE_AITER": "0"}, [T]),
    (RELEASES, ("MI300X",), MOE_FP8, {"SGLANG_USE_AITER": "1"}, ["AITER"]),
    (RELEASES, ("MI300X",), MOE_BF16, {"SGLANG_USE_AITER": "0"}, [T]),
    (RELEASES, ("MI300X",), INT8, {}, [T]),
    (RELEASES, ("MI300X",), MHA, {}, ["AITER"]),
    (RELEASES, ("MI300X",), MLA, {}, ["AITER"]),
    (RELEASES, ("MI300X",), MLA.replace("q_heads=16", "q_heads=32"), {}, [T]),
    (RELEASES, ("MI300X",), MLA, {"--enable-dp-attention": "1"}, ["AITER", T]),
]


def test_answers_are_what_the_source_says(subtests):
    for versions, cards, problem, flags, kernels in EXPECTED:
        with subtests.test(problem=problem, flags=flags, versions=versions, cards=cards):
            pairs = [*product(versions, cards)]
            found = {pair: names(*pair, problem, flags) for pair in pairs}
            assert found == dict.fromkeys(pairs, kernels)


def test_every_release_answers_for_every_card(subtests):
    for problem, version in product(PROBLEMS, RELEASES):
        with subtests.test(problem=problem, version=version):
            for card in CARDS:
                runs = asked(version, card, problem)
                assert not runs.kernels[-1].condition, card
                assert all(kernel.condition for kernel in runs.kernels[:-1]), card
                assert "\n" not in runs.line()
                assert runs.line().startswith(f"sglang {version} on {find_device(card).name} runs ")


@pytest.mark.parametrize("changed", only([{}], [{}, {BACKEND: "deep_gemm"}, {RUNNER: "cutlass"}]))
def test_the_options_that_an_answer_names_give_triton(changed, subtests):
    for problem, version in product(PROBLEMS, RELEASES):
        with subtests.test(problem=problem, version=version):
            for card in (*CARDS, "MI300X"):
                runs = what_runs("sglang", version, problem_of(problem), find_device(card), changed)
                if runs and runs.to_triton:
                    again = asked(version, card, problem, {**changed, **runs.to_triton})
                    kernels = [kernel.name for kernel in again.kernels]
                    # No option says whether a model's class asks for another kernel.
                    assert again.always_triton or M in kernels or "Kimi" in runs.line(), runs.line()


def test_a_line_says_what_files_are_read_with():
    h200 = asked("0.5.23", "H200", FP8).line()
    assert h200 == (
        "sglang 0.5.23 on NVIDIA_H200 runs DeepGEMM here if DeepGEMM is installed, as in sglang's "
        "images, else Triton; tuned files are read only by Triton, which needs "
        "--fp8-gemm-backend triton"
    )
    told = asked("0.5.23", "H200", FP8, {BACKEND: "deep_gemm"}).line()
    assert told.endswith(
        "runs DeepGEMM here; tuned files are read only with --fp8-gemm-backend triton"
    )
    assert asked("0.5.23", "L40S", FP8).line().endswith("runs Triton here; it reads tuned files")
    refused = asked("0.5.23", "H200", FP8, {BACKEND: "cutlass"}).line()
    assert "the server refuses this --fp8-gemm-backend here" in refused
    served = asked("0.5.16", "B200", CHANNEL_INT8).line()
    assert "int8_scaled_mm is not built for this card" in served


def test_a_card_whose_triton_has_no_8_bit_floats_reads_no_file(subtests):
    for version, card in product(RELEASES, ("A10", "A100", "RTX 3090", "A40")):
        with subtests.test(version=version, card=card):
            for problem in (MOE_FP8, FP8):
                runs = asked(version, card, problem)
                assert not any(kernel.triton for kernel in runs.kernels) and not runs.to_triton
                if runs.kernels[-1].name == T:
                    assert f"no 8-bit floats on {find_device(card).target.name}" in runs.line()
            assert asked(version, card, MOE_BF16).always_triton
    for card in ("L4", "L40S", "RTX 4090"):
        assert asked("0.5.23", card, MOE_FP8).line().endswith("it reads tuned files")
    for engine, problem, settings in (
        ("vllm", FP8, {}),
        (
            "sglang",
            MOE_FP8,
            of_class({"checkpoint": "fp8_w8a8 modelopt fp8"}, "NemotronHForCausalLM"),
        ),
    ):
        a100 = what_runs(engine, "", problem_of(problem), find_device("A100"), settings)
        assert not a100.may_read and not a100.to_triton
    refined = MOE_FP8.replace("128x128", "64x64")
    assert (
        "a server stops"
        in what_runs("vllm", "0.33.0", problem_of(refined), find_device("A10")).line()
    )
    vllm = what_runs("vllm", "0.33.0", problem_of(MOE_FP8), find_device("A10"))
    assert vllm.line().endswith(
        "runs Marlin here; no option makes it run Triton, so it reads no tuned file"
    )


def test_a_release_that_was_not_read_follows_the_one_before_it():
    assert "by the rules of" not in asked("0.5.16", "L40S", FP8).line()
    assert "(by the rules of 0.5.16)" in asked("0.5.20", "L40S", FP8).line()
    assert "(by the rules of 0.5.23)" in asked("0.6.0", "L40S", FP8).line()
    assert (
        asked("0.5.16.post1", "RTX 5090", FP8).kernels == asked("0.5.16", "RTX 5090", FP8).kernels
    )
    assert what_runs("sglang", "of mine", problem_of(FP8), find_device("L40S"), {}) is None


def test_a_release_older_than_all_that_were_read_is_a_doubt(subtests):
    """vLLM 0.15.1 runs FlashInfer (CUTLASS) here and has no --moe-backend; 0.24.0 runs Triton."""
    for engine, version, oldest, problem, card in (
        ("sglang", "0.5.12", "0.5.16", FP8, "L40S"),
        ("sglang", "0.5.2", "0.5.16", FP8, "H200"),
        ("sglang", "0.4.4", "0.5.16", MHA, "H100"),
        ("vllm", "0.15.1", "0.24.0", MOE_FP8, "H200"),
        ("vllm", "0.11.0", "0.24.0", DELTA, "H100"),
    ):
        with subtests.test(engine=engine, version=version, problem=problem):
            runs = what_runs(engine, version, problem_of(problem), find_device(card))
            assert runs and runs.older and runs.may_read
            line = runs.line()
            assert f"(by the rules of {oldest}, the oldest release read)" in line
            assert line.endswith("; whether it reads tuned files is not known")
            assert "--" not in line, "the release may not have the flag"
            assert runs.without_us(()) is None
            assert runs.without_us({"deep_gemm", "flashinfer"}) is None
            assert runs.as_json()["to_triton"] == {}


def test_a_card_without_8_bit_floats_is_no_doubt_of_an_older_release():
    runs = asked("0.5.12", "A10", MOE_FP8)
    assert "Triton has no 8-bit floats on sm_86" in runs.line()
    assert not runs.may_read


def test_a_release_between_two_that_differ_is_not_judged_by_the_earlier_one_alone():
    """sglang 0.5.16 runs FlashInfer here, 0.5.23 FlashAttention 4."""
    between = asked("0.5.18", "B200", ASYMMETRIC)
    assert "(by the rules of 0.5.16; 0.5.23 runs FlashAttention 4, and no" in between.line()
    assert "no release between was read" in between.line()
    assert between.without_us(()) is None
    assert asked("0.5.16", "B200", ASYMMETRIC).without_us(()) is not None


def test_the_json_has_the_line_and_its_sources():
    runs = asked("0.5.16", "H200", FP8).as_json()
    assert runs["line"].startswith("sglang 0.5.16 on NVIDIA_H200 runs DeepGEMM")
    first, second = runs["kernels"]
    assert first == {
        "kernel": "DeepGEMM",
        "backend": "deep_gemm",
        "triton": False,
        "if": "DeepGEMM is installed, as in sglang's images",
        "source": "srt/layers/quantization/fp8_utils.py",
    }
    assert (second["kernel"], second["triton"], second["if"]) == ("Triton", True, None)
    assert runs["to_triton"] == {"--fp8-gemm-backend": "triton"}
    assert runs["rules_of"] == "0.5.16"
    assert runs["problems"] == [FP8]


# Problem, card, flags, installed backends, and the backend that runs; "" where it is not known.
WITHOUT_US = [
    (FP8, "H200", {}, {"deep_gemm"}, "deep_gemm"),
    (FP8, "H200", {}, set(), "triton"),
    (FP8, "H200", {}, None, ""),
    (FP8, "H200", {BACKEND: "triton"}, None, "triton"),
    (FP8, "L40S", {}, None, "triton"),
    (MOE_FP8, "H200", {}, None, "triton"),
    (MHA, "H200", {}, None, "fa3"),
    (MHA, "H200", {"--attention-backend": "flashmla"}, None, "flash_mla"),
    (MLA, "H200", {"--decode-attention-backend": "triton"}, None, "triton"),
    (MLA, "H200", {"--prefill-attention-backend": "triton"}, None, "fa3"),
    (FP8, "MI300X", {}, {"aiter"}, ""),  # a variable decides, not what is installed
    (FP8, "MI300X", {"SGLANG_USE_AITER": "1"}, None, "aiter"),
    (FP8, "H200", {BACKEND: "cutlass"}, None, "none"),  # the server refuses it
]


@pytest.mark.parametrize(("problem", "card", "flags", "installed", "backend"), WITHOUT_US)
def test_what_runs_without_us_is_known_where_nothing_is_left_open(
    problem, card, flags, installed, backend
):
    found = asked("0.5.16", card, problem, flags).without_us(installed)
    assert (found.backend if found else "") == backend


def test_an_installed_backend_may_not_be_enough():
    runs = what_runs("vllm", "0.33.0", problem_of(FP8), find_device("H200"), {})
    assert runs.without_us({"deep_gemm"}) is None  # whether it takes the shape is not known
    assert runs.without_us(set()).backend == "cutlass"


def test_vllm_answers_as_far_as_it_was_read():
    def vllm(card: str, problem: str, flags: dict[str, str] | None = None) -> str | None:
        runs = what_runs("vllm", "0.33.0", problem_of(problem), find_device(card), flags or {})
        return runs.kernels[0].name if runs else None

    assert vllm("H200", MOE_FP8, {"--moe-backend": "deep_gemm"}) == "DeepGEMM"
    assert vllm("B200", MOE_FP8, {"--moe-backend": "triton"}) == "Triton"
    assert vllm("L40S", FP8) == "Marlin"
    assert vllm("RTX 5090", FP8, {"--linear-backend": "auto"}) == "DeepGEMM"
    assert vllm("L40S", FP8, {"--linear-backend": "triton"}) == "Triton"
    assert vllm("H200", FP8) == "DeepGEMM"
    assert vllm("H200", MLA) is None
    assert vllm("MI300X", MOE_FP8) == "AITER"
    off = {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MOE": "0"}
    assert vllm("MI300X", MOE_FP8, off) == vllm("MI300X", MOE_BF16, off) == "Triton"
    assert vllm("MI300X", MOE_INT8) == "Triton's kernel for int8"
    for card, flags, name in (
        ("H200", {"-ep": "1"}, "FlashInfer (CUTLASS)"),
        ("H200", {"VLLM_USE_DEEP_GEMM": "1"}, "DeepGEMM"),
        ("H200", {"VLLM_USE_DEEP_GEMM": "1", "VLLM_MOE_USE_DEEP_GEMM": "0"}, "Triton"),
        ("H200", {"VLLM_MOE_USE_DEEP_GEMM": "1"}, "DeepGEMM"),
        ("RTX 5090", {"VLLM_MOE_USE_DEEP_GEMM": "0"}, "Triton"),
        ("RTX 5090", {"VLLM_USE_DEEP_GEMM": "0"}, "Triton"),
    ):
        assert vllm(card, MOE_FP8, flags) == name, (card, flags)
    assert vllm("H200", FP8, {"VLLM_USE_DEEP_GEMM": "0"}) == "CUTLASS"
    kimi, variable = MOE_INT4.replace("0x128", "0x32"), {"VLLM_USE_FLASHINFER_MOE_INT4": "1"}
    assert vllm("B200", kimi) == vllm("B200", MOE_INT4, variable) == "Marlin"
    assert vllm("B200", kimi, variable) == "FlashInfer (TRT-LLM)"
    for card in ("B200", "RTX 5090"):
        assert vllm(card, FP8, of_class({}, "Qwen3_5ForConditionalGeneration")) == "CUTLASS"
    channels = MOE_FP8.partition(",block_shape")[0]
    assert vllm("H200", channels, {"--quantization": "fp8_per_channel"}) == "CUTLASS"
    b200 = what_runs(
        "vllm", "0.33.0", problem_of(channels), find_device("B200"), {"-q": "fp8_per_channel"}
    )
    assert b200.line().endswith("batches of up to 8 tokens run Triton and read tuned files")
    assert vllm("MI300X", MOE_BF16, {"VLLM_ROCM_USE_AITER": "0"}) == "Triton"
    assert vllm("R9700", MOE_FP8, {"VLLM_ROCM_USE_AITER": "1"}) == "Triton"
    assert vllm("R9700", FP8, {"VLLM_ROCM_USE_AITER": "1"}) == "Triton"


def test_an_engine_without_rules_says_nothing():
    assert what_runs("toyengine", "1.2.3", problem_of(FP8), find_device("L40S"), {}) is None


def lines(device: str, *problems: str) -> list[str]:
    asked_for = [problem_of(text) for text in problems]
    return [one.line() for one in engine_runs("sglang", "0.5.16", asked_for, find_device(device))]


def test_equal_answers_are_given_once():
    assert lines("L40S", FP8, QKV_A, INT8, FP8) == [
        "sglang 0.5.16 on NVIDIA_L40S runs Triton here; it reads tuned files"
    ]


def test_different_answers_name_their_problems():
    fa3, moe = lines("H200", MHA, MLA, MOE_FP8)
    assert fa3.startswith(
        "sglang 0.5.16 on NVIDIA_H200 runs FlashAttention 3 for extend_attention and "
        "decode_attention; "
    )
    assert " runs Triton for fused_moe; " in moe
    cutlass, triton = lines("RTX 5090", FP8, QKV_A)
    assert f" for {FP8}; " in cutlass
    assert f" runs Triton for {QKV_A}; " in triton
    first, _ = engine_runs(
        "sglang", "0.5.16", map(problem_of, (FP8, QKV_A)), find_device("RTX 5090")
    )
    assert first.as_json()["problems"] == [FP8]


def test_flags_are_read_from_a_command_line():
    words = ["--tp", "8", "--enable-ep-moe", "--attention-backend=fa3", "--quantization", "fp8"]
    assert flags_of(words) == {
        "--tp": "8",
        "--enable-ep-moe": "1",
        "--attention-backend": "fa3",
        "--quantization": "fp8",
    }
    assert flags_of(["--a", "1", "--a", "2"]) == {"--a": "2"}


# The shipped tables


@pytest.fixture(params=["sglang", "vllm"])
def values(request):
    return shipped_toml(f"tuner.engines.{request.param}", "dispatch.toml")


ROW = {"on", "where", "flags", "if", "named", "names", "backend", "kernel", "to_triton", "reads"}
ROW |= {"by_file", "note", "compiled", "source", "text"}


def rows_of(values):
    return [row for rows in values["row"].values() for row in rows]


def test_rows_have_known_fields_and_open_questions(values):
    optional = {"alone", "backends", "classes", "looked_for", "other_names", "refuses"}
    assert set(values) - optional == {"releases", "root", "kinds", "flags", "unknown", "row"}
    assert set(values["kinds"]) == set(values["row"])
    asked_for = set()
    for row in rows_of(values):
        assert set(row) <= ROW, row
        assert ("named" in row) != ("backend" in row), row
        assert re.fullmatch(r"[a-z][a-z0-9_]*", row.get("backend", "named")), row
        asked_for.add(row.get("if"))
    assert set(values["unknown"]) == asked_for - {None}
    assert set(values.get("looked_for", ())) <= set(problem_names())
    for kind in values["kinds"].values():
        assert set(kind["problems"]) <= set(problem_names())
    known = {one.name for one in fields(UnknownFact)}
    for unknown in values["unknown"].values():
        assert unknown["words"] and set(unknown) <= known


def test_rows_name_kernels_only_where_the_backend_s_title_would_not_do(values):
    for row in rows_of(values):
        assert row.get("kernel") != title_of(row.get("backend", "")), row
        assert row.get("backend") != "triton" or "kernel" not in row, row


def test_rows_cite_releases_of_the_table(values):
    assert values["releases"] == sorted(values["releases"], key=release_of)
    for row in rows_of(values):
        cited = row["source"] if isinstance(row["source"], dict) else {}
        assert set(cited) <= set(values["releases"])


def test_flags_have_defaults_that_rows_ask_for(values):
    rows = [*rows_of(values), *values["kinds"].values()]
    named = {name for row in rows for name in (*row.get("flags", {}), row.get("named"))}
    assert set(values["flags"]) <= named


@pytest.mark.parametrize(
    ("version", "shown"), [("0.33.0", True), ("0.10.2", True), ("0.9.2", False), ("0.6.3", False)]
)
def test_a_warning_of_a_release_that_was_not_read_shows_nothing(version, shown):
    problem = parse_problem("fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8")
    assert bool(seen_to_run("vllm", version, [problem], find_device("H100"))) is shown


COMPRESSED = {"checkpoint": "fp8_w8a8 compressed-tensors float8"}
QWEN = {"architecture": "Qwen3MoeForCausalLM"}
GPT_OSS = {"architecture": "GptOssForCausalLM"}
NARROW = MOE.replace("N=256", "N=192")


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    ("problem", "device", "settings", "backends"),
    [
        # compressed-tensors has methods of its own, and no override names compressed-tensors.
        (MOE_FP8, "B200", {**QWEN, **COMPRESSED}, ["triton"]),
        (MOE_FP8, "B200", {**QWEN, "checkpoint": "fp8_w8a8 fp8"}, ["flashinfer_trtllm"]),
        # AITER's kernel of 16-bit weights is for columns in 128s.
        (f"{NARROW}bfloat16", "MI300X", QWEN, ["triton"]),
        (MOE_BF16, "MI300X", QWEN, ["aiter", "triton"]),
        (MOE_BF16, "MI300X", GPT_OSS, ["triton", "triton_kernels", "triton"]),
        (MOE_BF16, "B200", {"architecture": "MiniMaxM3SparseForCausalLM"}, ["triton"]),
    ],
)
def test_the_overrides_of_classes_and_checkpoints(version, problem, device, settings, backends):
    runs = what_runs("sglang", version, problem_of(problem), find_device(device), settings)
    assert [kernel.backend for kernel in runs.kernels] == backends


def test_the_flag_for_triton_keeps_the_columns_of_a_file_s_name():
    """With SGLANG_USE_AITER=1, sglang pads fp8 weights for each kernel, and a file has that N."""
    for columns, flags in ((256, {"--moe-runner-backend": "triton"}), (176, {})):
        text = MOE.replace("N=256", f"N={columns}") + "fp8_w8a8,per_channel_quant"
        runs = what_runs("sglang", "0.5.23", problem_of(text), find_device("MI300X"))
        assert dict(runs.to_triton) == (flags or {"SGLANG_USE_AITER": "0"})
