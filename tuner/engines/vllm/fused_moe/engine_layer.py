"""vLLM's own fused-MoE layer; run as a module by `tuner prove`.

This imports vLLM: its loader picks the entries, and its `fused_experts_impl` runs the whole layer.
Tried with stand-ins for vLLM's compiled parts alone (tests/engines/vllm_stand_ins.py).
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from torch import Tensor
from vllm.model_executor.layers.fused_moe import fused_moe

from tuner.engines.vllm.fused_moe.loader_rules import CONFIG_DIR_VARIABLE
from tuner.families.fused_moe.inputs import Weights
from tuner.families.fused_moe.layer import main
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.dtypes import Dtype

_LOADER = fused_moe.get_moe_configs
_TAKES = inspect.signature(fused_moe.fused_experts_impl).parameters


class VLLMLayer:
    """See `ServedLayer`."""

    def run(
        self, problem: FusedMoe, up: Weights, down: Weights, x: Tensor, weights: Tensor, ids: Tensor
    ) -> Tensor:
        arguments: dict[str, Any] = {
            "hidden_states": x,
            "w1": up.b,
            "w2": down.b,
            "topk_weights": weights,
            "topk_ids": ids,
            "use_fp8_w8a8": problem.dtype is Dtype.FP8_W8A8,
            "use_int8_w8a16": problem.dtype is Dtype.INT8_W8A16,
            "per_channel_quant": problem.per_channel_quant,
            "w1_scale": up.scale,
            "w2_scale": down.scale,
            "block_shape": list(problem.block_shape) if problem.block_shape else None,
            "inplace": False,  # some releases have no default for it
        }
        given = {name: value for name, value in arguments.items() if name in _TAKES}
        out: Tensor = fused_moe.fused_experts_impl(**given)
        return out

    def use_files(self, root: Path | None) -> None:
        if root is None:
            os.environ.pop(CONFIG_DIR_VARIABLE, None)
        else:
            os.environ[CONFIG_DIR_VARIABLE] = str(root)
        _LOADER.cache_clear()
        fused_moe.get_moe_configs = _LOADER

    def use_no_files(self) -> None:
        # An empty folder would not do: the loader then reads the package's file.
        fused_moe.get_moe_configs = lambda *key: None


if __name__ == "__main__":
    main(VLLMLayer())
