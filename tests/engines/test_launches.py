"""An out-of-memory message of Triton is compared with what the engine's kernels need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.diagnose import Hints, diagnose

CUT = (
    '  File "/opt/lib/python3.12/site-packages/triton/compiler/compiler.py", line 388, in '
    "_init_handles\n    raise OutOfResources(self.metadata.shared, max_shared, "
    '"shared memory")\ntriton.runtime.errors.OutOfResources: out of resource: shared memory, '
    "Required: {}, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.\n"
)
SERVED = Hints("sglang==0.4.4", "4090", "qwen3-30b-a3b-fp8", 2)


FRAME = (
    'Traceback (most recent call last):\n  File "/opt/sglang/srt/layers/moe/fused_moe_triton/'
    'fused_moe.py", line 611, in invoke_fused_moe_kernel\n    fused_moe_kernel[grid](\n'
)


def said(folder: Path, text: str, hints: Hints = SERVED) -> str:
    path = folder / "server.log"
    path.write_text(text)
    return diagnose([path], hints).as_text()


@pytest.mark.slow
def test_other_weights_of_a_model_are_compiled_if_its_own_do_not_need_the_bytes(tmp_path):
    found = said(tmp_path, FRAME + CUT.format(163840))
    assert "fused_moe.py, line 611" in found
    assert "Nothing needs these bytes with the weights that the model's name says" in found
    assert (
        "a fused-MoE layer, up and down: the engine's default configuration at M=256 to M=4096 "
        "needs exactly 163,840 bytes (BLOCK_SIZE_K=128,BLOCK_SIZE_M=128,BLOCK_SIZE_N=256," in found
    )
    assert "fused_moe:E=128,N=384,K=2048,top_k=8,dtype=fp8_w8a8)" in found
    assert "tuner tune config.json --tp 2 --device 4090 --engine sglang==0.4.4" in found
    assert "--family" not in found


def test_the_kernel_whose_bytes_a_message_names_is_found(tmp_path):
    found = said(tmp_path, FRAME + CUT.format(66048))
    assert "up and down: the engine's default configuration at M=1 to M=4096 needs" in found
    assert "other weights" not in found and "block_shape=128x128)" in found
    assert "tuner tune qwen3-30b-a3b-fp8 --tp 2 --device 4090 --engine sglang==0.4.4" in found


@pytest.mark.slow
def test_bytes_of_no_kernel_that_is_known_are_told(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(FRAME + CUT.format(123456))
    (answer,) = diagnose([path], SERVED).as_json()["found"]
    assert answer["details"]["launches"] == []
    assert "needs 123,456 bytes" in str(answer) and "None of " in str(answer)


def test_nothing_is_compiled_where_a_fact_is_missing(tmp_path):
    for hints in (Hints("sglang==0.4.4", "4090", "qwen3-30b-a3b-fp8"), Hints("sglang", "4090")):
        found = said(tmp_path, CUT.format(163840), hints)
        assert "exactly" not in found and "None of" not in found
        assert "Give the whole traceback" in found


@pytest.mark.slow
def test_a_cut_traceback_leaves_all_families_of_the_model(tmp_path):
    found = said(tmp_path, CUT.format(163840))
    assert "The traceback is cut" in found and "exactly 163,840 bytes" in found
