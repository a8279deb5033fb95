"""When the engines' fused-MoE kernel swaps A and B, so that weights are the long side of a tile."""

from __future__ import annotations

from tuner.devices.target import Target
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config


def swaps_ab(config: Config, dtype: Dtype, target: Target) -> bool:
    """The rule of sglang's `should_enable_swap_ab`, and of vLLM's: fp8 on sm_90 alone."""
    small = config["BLOCK_SIZE_M"] < 64 <= config["BLOCK_SIZE_N"]
    return dtype is Dtype.FP8_W8A8 and target.is_sm(90) and small
