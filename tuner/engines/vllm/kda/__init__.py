"""Kimi delta attention in vLLM."""

from __future__ import annotations

from tuner.engines.vllm.chunk_scan import open_delivery
from tuner.engines.vllm.kda.binding import VLLMKda
from tuner.models.delta_json import DeltaShape

__all__ = ["open_delivery", "open_family", "state_dtype"]

open_family = VLLMKda


def state_dtype(shape: DeltaShape) -> str:
    """The type of states with --mamba-ssm-cache-dtype left out: `kda_state_dtype` of 0.33.0."""
    return "float32"
