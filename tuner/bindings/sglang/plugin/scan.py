"""Hook sglang's kernels of chunked scans: `tuner/families/scans/serve.py`."""

from __future__ import annotations

from pathlib import Path

from tuner.bindings.sglang.plugin.hooks import runtime_facts
from tuner.bindings.sglang.scan_sources import SOURCES
from tuner.export.file_checks import RuntimeFacts
from tuner.families.scans.serve import hook_sources


def hook_scans(root: Path) -> None:
    """Give the files under a root to the kernels, once their modules are imported."""
    hook_sources(SOURCES, "sglang", root, _facts)


def _facts(family: str) -> RuntimeFacts:
    return runtime_facts(lambda engine, platform: SOURCES.lift(engine, family, platform).hash)
