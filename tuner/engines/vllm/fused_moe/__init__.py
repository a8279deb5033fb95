"""Fused-MoE layers in vLLM."""

from __future__ import annotations

from tuner.engines.vllm.fused_moe.blocks import rank_block
from tuner.engines.vllm.fused_moe.files import VLLMFusedMoe
from tuner.engines.vllm.fused_moe.shared_experts import shared_expert_fusion
from tuner.engines.vllm.fused_moe.warning_line import parse_config_name, resolve_warning
from tuner.engines.vllm.package import VLLM
from tuner.families.fused_moe.export import MoeDelivery

# The program that `tuner prove` runs.
PROVING_CHILD = f"{__name__}.engine_layer"

__all__ = [
    "PROVING_CHILD",
    "open_delivery",
    "open_family",
    "parse_config_name",
    "rank_block",
    "resolve_warning",
    "shared_expert_fusion",
]


open_family = VLLMFusedMoe


def open_delivery(engine: VLLM) -> MoeDelivery:
    """How a layer's winners reach the servers of one copy of vLLM."""
    # Where the folder of the variable lacks a file, servers read the package's.
    return MoeDelivery(VLLMFusedMoe(engine), replaces_packaged=False)
