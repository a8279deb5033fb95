"""Check whether a server may use a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tuner.bindings.sglang.plugin.files import AttentionFile, read_attention_file, title
from tuner.bindings.sglang.plugin.gemm_files import GemmFile, read_gemm_file
from tuner.export.file_checks import FileCheck, RuntimeFacts, check_with
from tuner.families.dense_gemm.problem import DenseGemm

__all__ = ["FileCheck", "RuntimeFacts", "check_file", "check_gemm_file", "title"]


def check_file(
    path: Path, facts: RuntimeFacts, unhooked: Callable[[AttentionFile], str] = lambda file: ""
) -> FileCheck[AttentionFile]:
    """Read an attention file and compare it with the facts about this server.

    `unhooked`: why the plugin could not give the file's constants to any kernel; empty if it can.
    """

    def refusal(file: AttentionFile) -> str:
        return _other_splits(file, facts) or unhooked(file)

    return check_with(path, read_attention_file, facts, refusal)


def check_gemm_file(
    path: Path, facts: RuntimeFacts, reads: Callable[[DenseGemm], bool] = lambda problem: True
) -> FileCheck[GemmFile]:
    """Read a GEMM file and compare it with the facts about this server.

    `reads`: whether this engine asks for a file for a problem.
    """

    def refusal(file: GemmFile) -> str:
        engine = f"{facts.engine} {facts.engine_version}"
        return "" if reads(file.problem) else f"{engine} asks for no file for such a GEMM"

    return check_with(path, read_gemm_file, facts, refusal)


def _other_splits(file: AttentionFile, facts: RuntimeFacts) -> str:
    splits = facts.kv_splits(file.problem) if file.problem.kv_splits else None
    if splits is None or file.problem.kv_splits in splits:
        return ""
    launched = " or ".join(map(str, sorted(splits)))
    return f"made for {file.problem.kv_splits} KV splits, this server launches {launched}"
