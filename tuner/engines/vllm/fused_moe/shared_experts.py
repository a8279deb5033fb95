"""Whether vLLM appends the shared experts to the routed ones."""

from __future__ import annotations

from tuner.devices.target import Target
from tuner.errors import BadProblem
from tuner.families.fused_moe.engine import Fusion
from tuner.models.model import Model
from tuner.problems.dtypes import Dtype


def shared_expert_fusion(
    model: Model,
    engine_version: str | None,
    target: Target,
    *,
    tp: int = 1,
    ep: int = 1,
    dtype: Dtype | None = None,
    force: bool | None = None,
) -> Fusion:
    """vLLM never does in its Triton kernel, only in AITER's.

    Source: resolve_layer_fused_shared_expert in model_executor/layers/fused_moe/utils.py of 0.33.0;
    earlier releases ask AITER too. Raises BadProblem if fusion is forced.
    """
    if force:
        raise BadProblem("vLLM's Triton kernel runs no fused shared experts: only AITER's does")
    if not model.n_shared_experts:
        return Fusion(0, 0, f"{model.name} has no shared experts to fuse")
    return Fusion(0, 0, f"E={model.E // ep}: vLLM fuses no shared experts in its Triton kernel")
