"""Texts that people cut: what can be said of them, and what is missing."""

import pytest

from tuner.diagnose import diagnose_text

MISSING = (
    "[2026-02-21 10:48:17 TP3] Using MoE kernel config with down_moe=False. Performance might be "
    "sub-optimal! Config file not found at /w/python/sglang/srt/layers/moe/fused_moe_triton/"
    "configs/triton_3_5_1/E=128,N=192,device_name={}_down.json, you can create them"
)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("sglang version  v0.5.3rc0", {"engine": "sglang", "version": "0.5.3rc0"}),
        ("fails when run on sglang 0.4.6 here", {"engine": "sglang", "version": "0.4.6"}),
        (
            "8x RTX 5090 32GB, vLLM 0.11.2, TP=4",
            {"version": "0.11.2", "tp": "4", "device": "RTX 5090"},
        ),
        ("I deploy Qwen/Qwen3-235B-A22B-FP8 with", {"model": "Qwen/Qwen3-235B-A22B-FP8"}),
    ],
)
def test_people_s_own_words_are_read(text, facts):
    found = diagnose_text(text).findings.facts
    assert {name: found.get(name) for name in facts} == facts


def test_the_mark_of_the_down_product_is_no_part_of_the_gpu():
    (answer,) = diagnose_text(MISSING.format("NVIDIA_H200")).answers
    assert any("--device H200" in step for step in answer.fix)


def test_a_gpu_that_is_too_old_is_told_so():
    (answer,) = diagnose_text(MISSING.format("Tesla_T4")).answers
    said = " ".join(answer.fix)
    assert "Tesla_T4 (sm_75) is too old" in said
    assert "how to add a GPU" not in said


def test_an_unknown_gpu_of_a_known_capability_can_be_checked(subtests):
    for said in (
        "NVIDIA New Card, 12.0",
        "UserWarning: NVIDIA New Card with CUDA capability sm_120 is not compatible",
        "GPU 0: NVIDIA New Card (UUID: GPU-0)\n"
        "  CUDA Capability Major/Minor version number:    12.0",
    ):
        with subtests.test(said):
            (answer,) = diagnose_text(f"{said}\n{MISSING.format('NVIDIA_New_Card')}").answers
            steps = " ".join(answer.fix)
            assert "`tuner check` of config files takes --device sm_120" in steps
            assert not [step for step in answer.fix if step.startswith("$ ")]


def test_a_gpu_that_stands_for_another_names_it():
    (answer,) = diagnose_text(MISSING.format("NVIDIA_RTX_PRO_6000D")).answers
    assert "name the RTX PRO 6000, for which kernels compile the same" in " ".join(answer.fix)
