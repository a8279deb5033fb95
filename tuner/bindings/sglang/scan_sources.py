"""Where sglang's kernels of chunked scans are. Servers lift them too, so this module is light."""

from __future__ import annotations

from pathlib import Path

from tuner.devices.target import CUDA
from tuner.engines.sglang.package import SGLang
from tuner.families.scans.scan import Scan, scan_named
from tuner.families.scans.sources import folder_among, lift_kernels
from tuner.kernels.lift import Lifted

# The folders of each family's kernels below the package, the newest first.
FOLDERS = {
    "chunk_scan": ("kernels/ops/mamba/triton_ops", "srt/layers/attention/mamba/ops"),
    "gated_delta": ("kernels/ops/attention/fla", "srt/layers/attention/fla"),
}
CHAIN = "fused"  # of families that have several


def folder_of(engine: SGLang, family: str) -> Path:
    """The folder of a family's kernels, which a release may lack."""
    return folder_among(engine.root, FOLDERS[family])


def scan_here(family: str) -> Scan:
    """A family's chain as sglang has it."""
    scan = scan_named(family)
    return scan.of_chain(CHAIN) if scan.chains else scan


def lift_scan(engine: SGLang, family: str, backend: str = CUDA) -> Lifted:
    """A family's kernels for a backend, "cuda" or "hip". Raises UnsupportedKernel."""
    where = f"{engine.name} {engine.version}", engine.root, folder_of(engine, family)
    return lift_kernels(*where, scan_here(family), backend)
