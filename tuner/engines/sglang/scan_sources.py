"""Where sglang's kernels of chunked scans are. Servers lift them too, so this module is light."""

from __future__ import annotations

from pathlib import Path

from tuner.devices.target import CUDA
from tuner.engines.sglang.package import SGLang
from tuner.families.scans.scan import scan_named
from tuner.families.scans.sources import lift_kernels
from tuner.kernels.lift import Lifted

# The folders of each family's kernels below the package, the newest first.
FOLDERS = {
    "chunk_scan": ("kernels/ops/mamba/triton_ops", "srt/layers/attention/mamba/ops"),
    "gated_delta": ("kernels/ops/attention/fla", "srt/layers/attention/fla"),
}


def folder_of(engine: SGLang, family: str) -> Path:
    """The folder of a family's kernels, which a release may lack."""
    folders = [engine.root / name for name in FOLDERS[family]]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def lift_scan(engine: SGLang, family: str, backend: str = CUDA) -> Lifted:
    """A family's kernels for a backend, "cuda" or "hip". Raises UnsupportedKernel."""
    origin, scan = f"{engine.name} {engine.version}", scan_named(family)
    folder = folder_of(engine, family)
    return lift_kernels(origin, engine.root, folder, scan, scan.stages, backend)
