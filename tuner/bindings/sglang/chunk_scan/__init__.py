"""The Mamba-2 scan in sglang."""

from __future__ import annotations

from tuner.bindings.sglang.chunk_scan.binding import lift_chunk_scan
from tuner.engines.sglang.package import SGLang
from tuner.families.scans.engine import ScanEngine
from tuner.families.scans.export import ScanDelivery
from tuner.models.mamba_json import MambaShape
from tuner.problems.dtypes import Dtype, check_state_dtype

__all__ = ["open_delivery", "open_family", "state_dtype"]


def open_family(engine: SGLang) -> ScanEngine:
    """Return the Mamba-2 scan of a copy of sglang."""
    return ScanEngine(engine, lift_chunk_scan)


open_delivery = ScanDelivery


def state_dtype(shape: MambaShape, dtype: Dtype) -> str:
    """Return the type of states with SGLANG_MAMBA_SSM_DTYPE unset: `mamba2_state_dtype` in
    srt/configs/mamba_utils.py of 0.5.16 and 0.5.23. Raises BadProblem for an unknown type.
    """
    return check_state_dtype(shape.sglang_state_dtype or "float32")
