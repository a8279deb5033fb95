"""Crashes of compilers, drivers and kernels that are not Triton's: what is said of them."""

import pytest
from diagnose_cases import OUT, frame

from tuner.diagnose import diagnose_text

PACKAGES = "/usr/lib/python3/dist-packages"
VLLM, TRITON = f"{PACKAGES}/vllm", f"{PACKAGES}/triton"
SOLVE = frame(f"{VLLM}/model_executor/layers/fla/ops/solve_tril.py", 520, "solve_tril")
TIMED = f"{SOLVE}\n{frame(f'{TRITON}/runtime/autotuner.py', 240, 'run')}\n"
TOO_MUCH = OUT.format(131072, 101376)
COMPILE = """\
triton.compiler.errors.CompilationError: at 90:12:
def kernel_unified_attention_2d(
    M = tl.load(
        ^
AttributeError("'NoneType' object has no attribute 'type'")"""
FP8 = """\
at 1:0:
def {}(
^
ValueError("type fp8e4nv not supported in this architecture. {}")"""


def said(text):
    return diagnose_text(text).as_text()


def launched_at(path, function):
    return f"{frame(path, 9, function)}\n{frame(f'{TRITON}/runtime/jit.py', 4, 'run')}\n{TOO_MUCH}"


@pytest.mark.parametrize(
    ("text", "phrases", "never"),
    [
        (COMPILE, ["kernel is kernel_unified_attention_2d", "no attribute 'type'"], ["disk"]),
        (FP8.format("_w8a8_block_fp8_matmul", ""), ["the weights are fp8"], ["cache is fp8:"]),
        (FP8.format("reshape_and_cache_kernel", ""), ["the KV cache is fp8"], ["weights are fp8."]),
        (
            FP8.format("f", "The supported fp8 dtypes are ('fp8e4b8', 'fp8e5', 'fp8e5b16')"),
            ["MI300 has fp8e4b8"],
            ["A100, A10 and RTX 3090"],
        ),
        (
            TIMED + "RuntimeError: Triton Error [CUDA]: out of memory",
            ["while Triton timed candidates", "in solve_tril at its first launch"],
            ["An allocation of"],
        ),
        (SOLVE + "\nRuntimeError: CUDA error: misaligned address", ["It came up at "], []),
        (f"[7/0] No valid triton configs. {TOO_MUCH}", ["nothing failed"], ["stops: "]),
        (
            "Failed to import Triton kernels. Please make sure your triton version is compatible. "
            "Error: No module named 'triton.language.target_info'",
            ["note: vLLM goes on"],
            ["stops: "],
        ),
        (launched_at(f"{PACKAGES}/aiter/ops/a.py", "unified_attention"), ["_AITER=0"], ["config"]),
        (launched_at("/x/batch_invariant_ops.py", "mm"), ["--enable-deterministic"], ["backend:"]),
        (
            launched_at(f"{VLLM}/v1/attention/ops/d.py", "_decode_grouped_att_m_fwd"),
            ["vLLM reads no file for attention", "another --attention-backend"],
            [],
        ),
        (
            f"{TOO_MUCH}\n**Logs**\n{frame('/v/vllm/fused_moe.py', 1485, 'fused_experts_impl')}",
            ["It is a kernel of a fused-MoE layer"],
            ["nothing shows which kernel"],
        ),
        (
            "RuntimeError: Triton Error [HIP]: Code: 700, Message: an illegal memory access was "
            "encountered",
            ["AMD_SERIALIZE_KERNEL=3"],
            ["CUDA_LAUNCH_BLOCKING"],
        ),
    ],
)
def test_the_answer_says_what_the_lines_around_tell(text, phrases, never):
    answer = said(text)
    assert all(phrase in answer for phrase in phrases), answer
    assert not any(phrase in answer for phrase in never), answer


def test_an_error_that_nobody_knows_is_told_with_what_was_read():
    text = "vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 2 # on our H200\n"
    answer = said(text + frame(f"{VLLM}/v1/x.py", 7, "invoke_fused_moe_kernel") + "\nOddError: no")
    assert "The text tells: engine vLLM, GPU H200, model Qwen/Qwen3-30B-A3B, tp 2." in answer
    assert f"{VLLM}/v1/x.py, line 7, invoke_fused_moe_kernel" in answer
    assert "It launches a kernel of a fused-MoE layer" in answer


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("image: vllm/vllm-openai:0.4.1", {"engine": "vllm", "version": "0.4.1"}),
        ("vllm/vllm-openai-rocm:v0.21.0", {"engine": "vllm", "version": "0.21.0"}),
        ("image: llm226:5000/aip/sglang:v0.5.2rc0-cu126", {"engine": "sglang"}),
        ("4 L40s GPUs", {"device": "L40s"}),
        ("| 0  Tesla T4     Off | 00000001:00:00.0 Off |", {"device": "Tesla T4"}),
        (
            'Environment="SGLANG_ENABLE_JIT_DEEPGEMM=0" "A=0"',
            {"server_args": "SGLANG_ENABLE_JIT_DEEPGEMM=0"},
        ),
    ],
)
def test_launch_commands_are_read(text, facts):
    found = diagnose_text(text).findings.facts
    assert {name: found.get(name) for name in facts} == facts


def test_a_launch_command_without_a_gpu_is_told_what_it_lacks():
    answer = said("command: python3 -m vllm.entrypoints.api_server --model /m/x -tp 2")
    assert "The text tells: engine vLLM, model /m/x, tp 2." in answer
    assert "the command needs: --device" in answer


@pytest.mark.parametrize("escape", ["\x1b", "ESC", "^[", r"\x1b", r"\u001b", "#033"])
def test_colours_are_taken_out_however_they_are_spelled(escape):
    line = f"{escape}[1;36m(Worker_TP0 pid=1){escape}[0;0m CUDA error: {escape}[31mout of memory"
    (answer,) = diagnose_text(line).answers
    assert answer.finding.text == "(Worker_TP0 pid=1) CUDA error: out of memory"


NO_IMAGE = "CUDA error: no kernel image is available for execution on the device"
SOURCE = f"{NO_IMAGE} (209) /tmp/sdist/flashinfer-0.1.1+cu121torch2.3/include/handler.cuh: line 1"
NEWEST = "Install the engine's newest release"
BACKENDS = "--attention-backend triton --sampling-backend pytorch"


@pytest.mark.parametrize(
    ("text", "phrases", "never"),
    [
        (SOURCE, ["flashinfer 0.1.1 raised it", "newer or older than", BACKENDS], [NEWEST]),
        (f"Fails on sm75\n{SOURCE}", ["(sm_75), which is older than", BACKENDS], [NEWEST]),
        (f"Tesla T4  {SOURCE}\nGPU 0: Tesla T4 (UUID: GPU-1)", ["is older than"], [NEWEST]),
        (f"Fails on sm_120\n{SOURCE}", ["(sm_120), which is newer", NEWEST], [BACKENDS]),
        (f"vLLM with RTX-5090D\n{NO_IMAGE}", [NEWEST], ["give the whole"]),
        (f"On sm_90 it runs, on sm_120 not\n{SOURCE}", ["newer or older", BACKENDS], [NEWEST]),
        (
            f"{frame(f'{PACKAGES}/xformers/ops/fmha.py', 9, 'apply')}\n{NO_IMAGE}",
            ["xformers raised it", "TORCH_CUDA_ARCH_LIST"],
            [NEWEST, BACKENDS],
        ),
        (f"{SOLVE}\n{NO_IMAGE}", ["the innermost frame names it"], [NEWEST, "vllm raised it"]),
        (NO_IMAGE.replace("CUDA", "HIP"), ["gfx"], ["CUDA 12.8"]),
    ],
)
def test_binaries_without_a_gpu_s_code_are_told_by_their_library(text, phrases, never):
    answer = said(text)
    assert all(phrase in answer for phrase in phrases), answer
    assert not any(phrase in answer for phrase in never), answer
