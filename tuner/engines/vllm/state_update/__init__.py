"""The state update of Mamba-2 layers in vLLM."""

from __future__ import annotations

from tuner.engines.vllm.package import VLLM
from tuner.engines.vllm.state_update.delivery import StateDelivery
from tuner.engines.vllm.state_update.files import VLLMStateUpdate, find_file_name
from tuner.engines.vllm.state_update.serving import cache_dtype

__all__ = ["cache_dtype", "find_file_name", "open_delivery", "open_family"]


open_family = VLLMStateUpdate


def open_delivery(engine: VLLM) -> StateDelivery:
    """How tuned state updates reach the servers of one copy of vLLM."""
    return StateDelivery(VLLMStateUpdate(engine))
