"""Hooks sglang's kernels of the Mamba-2 scan in this process."""

from __future__ import annotations

from pathlib import Path

from tuner.engines.after_import import after_import
from tuner.families.scans.serve import MODULES, ScanChoices, ServerFacts, hook_module

# The packages of the kernels' modules, the newest first.
PACKAGES = ("sglang.kernels.ops.mamba.triton_ops", "sglang.srt.layers.attention.mamba.ops")


def hook_scan(root: Path) -> None:
    """Give the files under a root to the kernels, when their modules are imported."""
    choices = ScanChoices(root, _facts)
    for package in PACKAGES:
        for module in MODULES:
            after_import(f"{package}.{module}", lambda found: hook_module(found, choices))


def _facts() -> ServerFacts:
    import sglang  # noqa: PLC0415  # this process belongs to sglang
    import torch  # noqa: PLC0415
    import triton  # noqa: PLC0415

    def kernel_hash() -> str:
        from tuner.engines.sglang.chunk_scan.sources import lift_kernels  # noqa: PLC0415
        from tuner.engines.sglang.package import SGLang  # noqa: PLC0415

        here = SGLang(sglang.__version__, Path(sglang.__path__[0]))
        return lift_kernels(here).hash

    device = torch.cuda.get_device_name().replace(" ", "_")
    return ServerFacts("sglang", sglang.__version__, device, triton.__version__, kernel_hash)
