"""Time the engine's own fused-MoE layer with exported files; run as a module by `tuner prove`.

Arguments: the problem, a root of config files, an empty root, and batch sizes. It prints one JSON
line per batch size: the layer's microseconds, and its error against a float32 layer, with the root
("tuned"), with the package's files ("shipped") and without files ("default"), timed in turn.

This imports sglang as a server does: its loader picks the entries, and its code runs the whole
layer. Verified with sglang 0.5.16 on CUDA.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe, fused_moe_triton_config
from sglang.srt.runtime_context import get_context
from torch import Tensor

from tuner.families.fused_moe.inputs import make_weights, random_routing
from tuner.families.fused_moe.layer import SKEW, SKEWED
from tuner.families.fused_moe.problem import FusedMoe, Gemm, parse_fused_moe
from tuner.measure.timing import LAUNCHES, race
from tuner.problems.dtypes import Dtype

ROUNDS = 21
CHECKED_TOKENS = 8

LayerInputs = tuple[
    Tensor, Tensor, Tensor
]  # hidden states (M, K), router weights and ids (M, top_k)


class EngineLayer:
    """sglang's layer on this project's tensors."""

    def __init__(self, problem: FusedMoe) -> None:
        self.problem = problem
        self._up = make_weights(problem, Gemm.UP, device="cuda", seed=1)
        self._down = make_weights(problem, Gemm.DOWN, device="cuda", seed=2)

    def inputs(self, batch_size: int) -> list[LayerInputs]:
        """The inputs of each launch of a graph. Tokens and routings differ; some are skewed."""
        generator = torch.Generator("cuda").manual_seed(batch_size)
        found = []
        for i in range(LAUNCHES):
            x = torch.randn((batch_size, self.problem.K), device="cuda", generator=generator)
            skew = SKEW if i >= LAUNCHES - SKEWED else 0.0
            routing = random_routing(self.problem, batch_size, device="cuda", seed=i, skew=skew)
            found.append((x.bfloat16(), routing.weights, routing.ids))
        return found

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """The engine's output (M, K)."""
        problem = self.problem
        out: Tensor = fused_moe.fused_experts_impl(
            x,
            self._up.b,
            self._down.b,
            weights,
            ids,
            use_fp8_w8a8=problem.dtype is Dtype.FP8_W8A8,
            use_int8_w8a8=problem.dtype is Dtype.INT8_W8A8,
            use_int8_w8a16=problem.dtype is Dtype.INT8_W8A16,
            use_int4_w4a16=problem.dtype is Dtype.INT4_W4A16,
            per_channel_quant=problem.per_channel_quant,
            w1_scale=self._up.scale,
            w2_scale=self._down.scale,
            block_shape=list(problem.block_shape) if problem.block_shape else None,
            filter_expert=False,
        )
        return out

    def reference(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """The first tokens' output, (at most CHECKED_TOKENS, K) float32, from dense weights."""
        out = torch.zeros((min(len(x), CHECKED_TOKENS), self.problem.K), device="cuda")
        for token in range(len(out)):
            for choice, expert in enumerate(ids[token].tolist()):
                gate, up = (self._up.dense(expert) @ x[token].float()).chunk(2)
                hidden = torch.nn.functional.silu(gate) * up
                out[token] += weights[token, choice] * (self._down.dense(expert) @ hidden)
        return out


def compare(layer: EngineLayer, batch_size: int, roots: dict[str, Path | None]) -> dict[str, Any]:
    """Time and check the layer with each root's files, at one batch size."""
    inputs = layer.inputs(batch_size)
    expected = layer.reference(*inputs[0])
    graphs, errors = [], {}
    for name, root in roots.items():
        use_root(root)
        out = layer(*inputs[0])[: len(expected)].float()
        errors[name] = ((out - expected).norm() / expected.norm()).item()
        graphs.append(_capture(layer, inputs))
    medians = [statistics.median(samples) for samples in race(graphs, ROUNDS)]
    us = dict(zip(roots, medians, strict=True))
    return {"batch_size": batch_size, "us": us, "error": errors}


def use_root(root: Path | None) -> None:
    """Point the engine's loader at a root; None: at its package."""
    if root is None:
        os.environ.pop("SGLANG_MOE_CONFIG_DIR", None)
    else:
        os.environ["SGLANG_MOE_CONFIG_DIR"] = str(root)
    fused_moe_triton_config.get_moe_configs.cache_clear()


def publish_settings() -> None:
    """Publish the settings that the layer reads, as a server does on start: one rank, defaults."""
    get_context()._server_args = SimpleNamespace(
        enable_deterministic_inference=False,
        enable_fused_moe_sum_all_reduce=False,
        enable_symm_mem=False,
    )
    fused_moe.get_tp_group = lambda: SimpleNamespace(world_size=1)
    fused_moe.is_allocation_symmetric = lambda: False


def _capture(layer: Callable[..., Tensor], inputs: Sequence[LayerInputs]) -> torch.cuda.CUDAGraph:
    for _ in range(2):  # compile, and let the engine do the set-up of its first call
        layer(*inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for args in inputs:
            layer(*args)
    return graph


def main() -> None:
    problem, root, nothing, *sizes = sys.argv[1:]
    publish_settings()
    layer = EngineLayer(parse_fused_moe(problem))
    roots = {"tuned": Path(root), "shipped": None, "default": Path(nothing)}
    for size in sizes:
        print(json.dumps(compare(layer, int(size), roots)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
