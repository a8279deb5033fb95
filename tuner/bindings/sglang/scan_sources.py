"""List the folders of sglang's kernels of chunked scans. Servers lift them too, so this module is
light.
"""

from __future__ import annotations

from tuner.families.scans.sources import ScanSources

SOURCES = ScanSources(
    {
        "chunk_scan": ("kernels/ops/mamba/triton_ops", "srt/layers/attention/mamba/ops"),
        "gated_delta": ("kernels/ops/attention/fla", "srt/layers/attention/fla"),
    },
    chain="fused",
)
