"""The scan of gated delta nets in sglang."""

from __future__ import annotations

from tuner.bindings.sglang.chunk_scan import open_delivery
from tuner.bindings.sglang.gated_delta.binding import lift_gated_delta
from tuner.bindings.sglang.scan_sources import SOURCES
from tuner.engines.sglang.package import SGLang
from tuner.families.scans.engine import ScanEngine
from tuner.models.delta_json import DeltaShape
from tuner.problems.dtypes import check_state_dtype

__all__ = ["CHAIN", "open_delivery", "open_family", "state_dtype"]

CHAIN = SOURCES.chain


def open_family(engine: SGLang) -> ScanEngine:
    """Return the scan of gated delta nets of a copy of sglang."""
    return ScanEngine(engine, lift_gated_delta)


def state_dtype(shape: DeltaShape) -> str:
    """Return the type of states with SGLANG_MAMBA_SSM_DTYPE unset: `mamba2_state_dtype` in
    srt/configs/mamba_utils.py of 0.5.16 and 0.5.23. Raises BadProblem for an unknown type.
    """
    return check_state_dtype(shape.mamba_ssm_dtype or "float32")
