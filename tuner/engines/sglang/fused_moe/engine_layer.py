"""sglang's own fused-MoE layer; run as a module by `tuner prove`.

This imports sglang as a server does: its loader picks the entries, and its code runs the whole
layer. Verified with sglang 0.5.16 on CUDA.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe, fused_moe_triton_config
from sglang.srt.runtime_context import get_context
from torch import Tensor

from tuner.engines.sglang.fused_moe.files import CONFIG_DIR_VARIABLE
from tuner.families.fused_moe.inputs import Weights
from tuner.families.fused_moe.layer import main
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.dtypes import Dtype


class SGLangLayer:
    """See `ServedLayer`. It publishes the settings that the layer reads, as a server does on start:
    one rank, defaults.
    """

    def __init__(self) -> None:
        self._nothing = TemporaryDirectory()
        Path(self._nothing.name, "configs").mkdir()
        publish_settings()

    def run(
        self, problem: FusedMoe, up: Weights, down: Weights, x: Tensor, weights: Tensor, ids: Tensor
    ) -> Tensor:
        out: Tensor = fused_moe.fused_experts_impl(
            x,
            up.b,
            down.b,
            weights,
            ids,
            use_fp8_w8a8=problem.dtype is Dtype.FP8_W8A8,
            use_int8_w8a8=problem.dtype is Dtype.INT8_W8A8,
            use_int8_w8a16=problem.dtype is Dtype.INT8_W8A16,
            use_int4_w4a16=problem.dtype is Dtype.INT4_W4A16,
            per_channel_quant=problem.per_channel_quant,
            w1_scale=up.scale,
            w2_scale=down.scale,
            block_shape=list(problem.block_shape) if problem.block_shape else None,
            filter_expert=False,
        )
        return out

    def use_files(self, root: Path | None) -> None:
        if root is None:
            os.environ.pop(CONFIG_DIR_VARIABLE, None)
        else:
            os.environ[CONFIG_DIR_VARIABLE] = str(root)
        fused_moe_triton_config.get_moe_configs.cache_clear()

    def use_no_files(self) -> None:
        self.use_files(Path(self._nothing.name))


def publish_settings() -> None:
    """Publish the settings that the layer reads: one rank, defaults."""
    get_context()._server_args = SimpleNamespace(
        enable_deterministic_inference=False,
        enable_fused_moe_sum_all_reduce=False,
        enable_symm_mem=False,
    )
    fused_moe.get_tp_group = lambda: SimpleNamespace(world_size=1)
    fused_moe.is_allocation_symmetric = lambda: False


if __name__ == "__main__":
    main(SGLangLayer())
