"""The Mamba-2 scan in vLLM."""

from __future__ import annotations

from tuner.bindings.vllm.chunk_scan.binding import lift_chunk_scan
from tuner.engines.vllm.package import VLLM
from tuner.families.scans.engine import ScanEngine
from tuner.families.scans.export import ScanDelivery
from tuner.models.mamba_json import MambaShape
from tuner.problems.dtypes import Dtype, check_state_dtype

__all__ = ["open_delivery", "open_family", "state_dtype"]


def open_family(engine: VLLM) -> ScanEngine:
    """Return the Mamba-2 scan of a copy of vLLM."""
    return ScanEngine(engine, lift_chunk_scan)


open_delivery = ScanDelivery


# The keys of MODELS_CONFIG_MAP for which model_executor/models/config.py of 0.24.0 and 0.33.0 reads
# `mamba_ssm_cache_dtype` of config.json, and takes float32 if it is absent.
READS_CONFIG = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "NemotronH_Nano_VL_V2")


def state_dtype(shape: MambaShape, dtype: Dtype) -> str:
    """Return the type of states with --mamba-ssm-cache-dtype and --mamba-cache-dtype left out.

    Raises BadProblem for a type that config.json names and that vLLM does not have.
    """
    if shape.architecture in READS_CONFIG:
        return check_state_dtype(shape.cache_dtype or "float32")
    return dtype.value
