"""vLLM's own fused-MoE layer on this project's tensors: its loader picks the entries, and its
`fused_experts_impl` runs the whole layer. Import it after `vllm_stand_ins.import_fused_moe`.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe import fused_moe

from tuner.bindings.vllm.fused_moe.loader_rules import CONFIG_DIR_VARIABLE
from tuner.families.fused_moe.inputs import TORCH_TYPES, Weights, make_weights
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype

CHECKED_TOKENS = 8
_LOADER = fused_moe.get_moe_configs
_TAKES = inspect.signature(fused_moe.fused_experts_impl).parameters


class VLLMLayer:
    """The layer of a server in this process."""

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


class EngineLayer:
    """The layer on this project's tensors."""

    def __init__(self, served: VLLMLayer, problem: FusedMoe, device: str = "cuda") -> None:
        self.served, self.problem = served, problem
        self._device = device
        compute = "fp16" if problem.dtype is Dtype.FLOAT16 else "bf16"
        self._type = TORCH_TYPES[compute]
        self._up = make_weights(problem, Gemm.UP, device=device, seed=1, compute=compute)
        self._down = make_weights(problem, Gemm.DOWN, device=device, seed=2, compute=compute)

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """The engine's output (M, K)."""
        return self.served.run(self.problem, self._up, self._down, x, weights, ids)

    def reference(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """The first tokens' output, (at most CHECKED_TOKENS, K) float32, from dense weights."""
        out = torch.zeros((min(len(x), CHECKED_TOKENS), self.problem.K), device=self._device)
        for token in range(len(out)):
            for choice, expert in enumerate(ids[token].tolist()):
                gate, up = (self._up.dense(expert) @ x[token].float()).chunk(2)
                hidden = torch.nn.functional.silu(gate) * up
                out[token] += weights[token, choice] * (self._down.dense(expert) @ hidden)
        return out

    def use(self, files: str, root: Path) -> None:
        """Let the engine read "tuned", "shipped" or no files."""
        if files == "default":
            self.served.use_no_files()
        else:
            self.served.use_files(root if files == "tuned" else None)
