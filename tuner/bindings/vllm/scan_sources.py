"""Where vLLM's kernels of chunked scans are. Servers lift them too, so this module is light."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tuner.devices.target import CUDA
from tuner.engines.vllm.package import VLLM
from tuner.families.scans.scan import Scan, scan_named
from tuner.families.scans.sources import folder_among, lift_kernels
from tuner.kernels.lift import Lifted

# The folders of each family's kernels below the package, the newest first.
FOLDERS = {
    "chunk_scan": ("model_executor/layers/mamba/ops",),
    "gated_delta": ("third_party/flash_linear_attention/ops", "model_executor/layers/fla/ops"),
}
CHAIN = "split"  # of families that have several


def folder_of(engine: VLLM, family: str) -> Path:
    """The folder of a family's kernels, which a release may lack."""
    return folder_among(engine.root, FOLDERS[family])


def scan_here(family: str) -> Scan:
    """A family's chain as vLLM has it."""
    scan = scan_named(family)
    if scan.chains:
        return scan.of_chain(CHAIN)
    # The last states go straight into the cache, so no kernel finds them at the ends of sequences.
    once = {part: replace(stage, calls=stage.calls[:1]) for part, stage in scan.stages.items()}
    return replace(scan, stages=once)


def lift_scan(engine: VLLM, family: str, backend: str = CUDA) -> Lifted:
    """A family's kernels for a backend, "cuda" or "hip". Raises UnsupportedKernel."""
    where = f"{engine.name} {engine.version}", engine.root, folder_of(engine, family)
    return lift_kernels(*where, scan_here(family), backend)
