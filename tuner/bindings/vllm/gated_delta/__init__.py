"""The scan of gated delta nets in vLLM."""

from __future__ import annotations

from tuner.bindings.vllm.chunk_scan import open_delivery
from tuner.bindings.vllm.gated_delta.binding import lift_gated_delta
from tuner.bindings.vllm.scan_sources import SOURCES
from tuner.engines.vllm.package import VLLM
from tuner.families.scans.engine import ScanEngine
from tuner.models.delta_json import DeltaShape
from tuner.problems.dtypes import check_state_dtype

__all__ = ["CHAIN", "open_delivery", "open_family", "state_dtype"]

CHAIN = SOURCES.chain


def open_family(engine: VLLM) -> ScanEngine:
    """Return the scan of gated delta nets of a copy of vLLM."""
    return ScanEngine(engine, lift_gated_delta)


def state_dtype(shape: DeltaShape) -> str:
    """Return the type of states with --mamba-ssm-cache-dtype and --mamba-cache-dtype left out:
    `Qwen3_5ForConditionalGenerationConfig` and `_mamba_state_dtype` of 0.24.0 and 0.33.0. Qwen3.5's
    config.json say float32, as far as they are known. Raises BadProblem for an unknown type.
    """
    if shape.architecture.startswith("Qwen3_5"):
        return check_state_dtype(shape.mamba_ssm_dtype or "float32")
    return shape.dtype.value
