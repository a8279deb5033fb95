"""The state update of Mamba-2 layers in vLLM."""

from __future__ import annotations

from tuner.engines.vllm.package import VLLM
from tuner.engines.vllm.state_update.delivery import StateDelivery
from tuner.engines.vllm.state_update.files import VLLMStateUpdate, find_file_name
from tuner.models.mamba_json import MambaShape
from tuner.problems.dtypes import Dtype, check_state_dtype

__all__ = ["cache_dtype", "find_file_name", "open_delivery", "open_family"]


open_family = VLLMStateUpdate


def open_delivery(engine: VLLM) -> StateDelivery:
    """How tuned state updates reach the servers of one copy of vLLM."""
    return StateDelivery(VLLMStateUpdate(engine))


# The keys of MODELS_CONFIG_MAP for which model_executor/models/config.py of 0.24.0 and 0.33.0 reads
# `mamba_ssm_cache_dtype` of config.json, and takes float32 where it is absent.
READS_CONFIG = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "NemotronH_Nano_VL_V2")


def cache_dtype(shape: MambaShape, dtype: Dtype) -> str:
    """The type of states with --mamba-ssm-cache-dtype and --mamba-cache-dtype left out.

    Raises BadProblem for a type that config.json names and that vLLM does not have.
    """
    if shape.architecture in READS_CONFIG:
        return check_state_dtype(shape.cache_dtype or "float32")
    return dtype.value
