"""Check what is said of compilers' crashes, and of kernels that are not a family's."""

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
        (FP8.format("reshape_and_cache_kernel", ""), ["kernel is reshape_and_cache_kernel"], []),
        (
            FP8.format("f", "The supported fp8 dtypes are ('fp8e4b8', 'fp8e5', 'fp8e5b16')"),
            ["MI300 has fp8e4b8"],
            ["A100, A10 and RTX 3090"],
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
            f"{frame(f'{VLLM}/v1/worker/gpu_worker.py', 3, 'execute_model')}\n"
            + launched_at(f"{VLLM}/model_executor/layers/fused_moe/fused_moe.py", "fused_experts"),
            ["launched at", "fused_moe.py, line 9, in fused_experts", "of a fused-MoE layer"],
            ["gpu_worker.py"],
        ),
    ],
)
def test_the_answer_says_what_the_lines_around_tell(text, phrases, never):
    answer = said(text)
    assert all(phrase in answer for phrase in phrases), answer
    assert not any(phrase in answer for phrase in never), answer


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


@pytest.mark.parametrize("escape", ["\x1b", "ESC", "^[", r"\x1b", r"\u001b", "#033"])
def test_colours_are_taken_out_however_they_are_spelled(escape):
    line = f"{escape}[1;36m(Worker_TP0 pid=1){escape}[0;0m NET/IB : {escape}[31mNo device found"
    (answer,) = diagnose_text(line).answers
    assert answer.finding.text == "(Worker_TP0 pid=1) NET/IB : No device found"
