"""Hook vLLM's kernels of chunked scans: `tuner/families/scans/serve.py`."""

from __future__ import annotations

from pathlib import Path

from tuner.bindings.vllm.scan_sources import SOURCES
from tuner.engines.vllm.package import VLLM
from tuner.export.file_checks import RuntimeFacts, facts_here
from tuner.families.scans.serve import hook_sources


def hook_scans(root: Path) -> None:
    """Give the files under a root to the kernels, once their modules are imported."""
    hook_sources(SOURCES, "vllm", root, _facts)


def _facts(family: str) -> RuntimeFacts:
    def kernel_hash(version: str, package: Path, platform: str) -> str:
        return SOURCES.lift(VLLM(version, package), family, platform).hash

    return facts_here("vllm", kernel_hash)
