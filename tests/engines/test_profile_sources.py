"""The table of kernels' names against the engines' own sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tiers import only

from tuner.engines.engine import find_engine
from tuner.engines.sglang.attention.binding import KERNELS
from tuner.engines.sglang.fused_moe.binding import DENSE, GROUPED
from tuner.families.attention.problem import AttentionPhase
from tuner.profile.families import _table, family_of
from tuner.profile.timeline import read_mark

ENGINES = ["sglang==0.5.2", "sglang==0.5.16", "sglang==0.5.23", "vllm==0.15.1", "vllm==0.33.0"]


def triton_kernels(root: Path) -> set[str]:
    """The names of functions under @triton.jit."""
    found = set()
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "triton.jit" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and any(
                "triton.jit" in ast.unparse(one) for one in node.decorator_list
            ):
                found.add(node.name)
    return found


@pytest.mark.parametrize("spec", only(["sglang==0.5.23", "vllm==0.15.1"], ENGINES))
def test_no_triton_kernel_of_an_engine_is_taken_for_a_compiled_one(spec):
    names = triton_kernels(find_engine(spec).root)
    assert len(names) > 100
    makers = {row["name"]: row["maker"] for row in _table()["family"]}
    # Kernels that communicate are in the families of communication, Triton or not.
    makers["all_reduce"] = "triton"
    assert not {name for name in names if makers[family_of(name)] != "triton"}


def test_the_kernels_that_are_tuned_have_the_families_that_say_so():
    assert {family_of(name) for name in (DENSE, GROUPED)} == {"fused_moe"}
    assert {family_of(name) for name in KERNELS[AttentionPhase.EXTEND]} == {"attention_extend"}
    assert {family_of(name) for name in KERNELS[AttentionPhase.DECODE]} == {"attention_decode"}


def test_marks_are_those_of_the_engines_sources():
    """Each engine's function that names a step is there, with the words that are read."""
    sglang = find_engine("sglang==0.5.16").root / "srt/utils/profile_utils.py"
    assert 'f"step[EXTEND bs={bs} toks={ext_toks}]"' in sglang.read_text()
    assert 'f"step[{mode.name} bs={bs}]"' in sglang.read_text()
    assert read_mark("step[EXTEND bs=2 toks=700]", 0, 1, 0).new_tokens == 700
    vllm = (find_engine("vllm==0.33.0").root / "v1/worker/gpu_worker.py").read_text()
    assert '"execute_context_"' in vllm
    assert '"_generation_"' in vllm
    assert read_mark("execute_context_1(5)_generation_2(2)", 0, 1, 0).sequences == 3
