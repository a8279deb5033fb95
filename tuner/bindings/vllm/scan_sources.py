"""List the folders of vLLM's kernels of chunked scans. Servers lift them too, so this module is
light.
"""

from __future__ import annotations

from dataclasses import replace

from tuner.families.scans.scan import Scan
from tuner.families.scans.sources import ScanSources


def _first_calls(scan: Scan) -> Scan:
    """Return the chain with only the first call of each kernel: the last states go straight into
    the cache, so no kernel finds them at sequences' ends.
    """
    once = {part: replace(tuned, calls=tuned.calls[:1]) for part, tuned in scan.kernels.items()}
    return replace(scan, kernels=once)


SOURCES = ScanSources(
    {
        "chunk_scan": ("model_executor/layers/mamba/ops",),
        "gated_delta": ("third_party/flash_linear_attention/ops", "model_executor/layers/fla/ops"),
    },
    chain="split",
    adapt=_first_calls,
)
