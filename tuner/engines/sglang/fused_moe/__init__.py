"""Fused-MoE layers in sglang."""

from __future__ import annotations

from tuner.engines.sglang.fused_moe.files import SGLangFusedMoe
from tuner.engines.sglang.fused_moe.shared_experts import shared_expert_fusion
from tuner.engines.sglang.fused_moe.warning_line import parse_config_name, resolve_warning
from tuner.engines.sglang.package import SGLang
from tuner.families.fused_moe.export import MoeDelivery
from tuner.families.fused_moe.models import Block, Cut, fitted_block

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


open_family = SGLangFusedMoe


def open_delivery(engine: SGLang) -> MoeDelivery:
    """How a layer's winners reach the servers of one copy of sglang."""
    return MoeDelivery(SGLangFusedMoe(engine), replaces_packaged=True)


def rank_block(cut: Cut, engine_version: str | None) -> Block:
    """The block of a rank's weights, the same in all releases. Raises BadProblem if none fits."""
    return fitted_block(cut)
