"""The Mamba-2 scan in vLLM."""

from __future__ import annotations

from tuner.engines.vllm.chunk_scan.binding import VLLMChunkScan
from tuner.engines.vllm.package import VLLM
from tuner.engines.vllm.state_update import cache_dtype as state_dtype
from tuner.families.scans.export import ScanDelivery

__all__ = ["open_delivery", "open_family", "state_dtype"]

open_family = VLLMChunkScan


def open_delivery(engine: VLLM) -> ScanDelivery:
    """How the winners of chunked scans reach the servers of one copy of vLLM."""
    return ScanDelivery(engine)
