"""Hooks sglang's kernels of chunked scans in this process."""

from __future__ import annotations

from pathlib import Path

from tuner.bindings.sglang.scan_sources import FOLDERS, lift_scan, scan_here
from tuner.engines.sglang.package import SGLang
from tuner.families.scans.serve import ServerFacts, hook_packages


def hook_scan(root: Path) -> None:
    """Give the files under a root to the kernels, when their modules are imported."""
    for family, folders in FOLDERS.items():
        packages = [f"sglang.{folder.replace('/', '.')}" for folder in folders]
        hook_packages(scan_here(family), packages, root, _facts)


def _facts() -> ServerFacts:
    import sglang  # noqa: PLC0415  # this process belongs to sglang
    import torch  # noqa: PLC0415
    import triton  # noqa: PLC0415

    def kernel_hash(family: str) -> str:
        return lift_scan(SGLang(sglang.__version__, Path(sglang.__path__[0])), family).hash

    device = torch.cuda.get_device_name().replace(" ", "_")
    return ServerFacts("sglang", sglang.__version__, device, triton.__version__, kernel_hash)
