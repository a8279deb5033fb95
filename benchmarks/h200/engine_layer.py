"""The engine's own fused-MoE layer, with its own loader, on files as exported.

    python benchmarks/h200/engine_layer.py gate PROBLEM OVERLAY OUT.json
    python benchmarks/h200/engine_layer.py procedure PROBLEM OUT.json

`gate` runs sglang's layer as a server does: the loader picks each entry from the overlay, from
the package, or finds nothing; outputs are compared with a float32 layer, and the three are timed
in turn. `procedure` times what sglang's tuning script does for one configuration (fresh tensors,
compile, a CUDA graph of 10 layers, 5 + 10 replays with new routings) on random ones of its grid.

Needs a GPU and an importable sglang.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from sglang.srt.layers.moe.moe_runner.triton_utils import (
    fused_moe,
    fused_moe_triton_config,
    override_config,
)
from sglang.srt.runtime_context import get_context

from tuner.kernels.fused_moe_inputs import make_weights, random_routing
from tuner.measure.layer import SKEW, SKEWED, race
from tuner.problems import BATCH_SIZES, Dtype, FusedMoe, Gemm, parse_problem

LAYERS = 10  # a graph
ROUNDS = 21
CHECKED_TOKENS = 8
PROCEDURE_BATCH_SIZES = (2, 16, 128, 1024, 4096)
PROCEDURE_CONFIGS = 10


def publish_settings() -> None:
    """What a server publishes at its start, as far as the layer reads it."""
    settings = SimpleNamespace(
        enable_deterministic_inference=False,
        enable_fused_moe_sum_all_reduce=False,
        enable_symm_mem=False,
    )
    get_context()._server_args = settings
    # One rank: no process group is asked for a pool that is switched off.
    fused_moe.get_tp_group = lambda: SimpleNamespace(world_size=1)
    fused_moe.is_allocation_symmetric = lambda: False


class Layer:
    """The engine's layer on this project's tensors."""

    def __init__(self, problem: FusedMoe) -> None:
        self.problem = problem
        self.up = make_weights(problem, Gemm.UP, device="cuda", seed=1)
        self.down = make_weights(problem, Gemm.DOWN, device="cuda", seed=2)

    def inputs(self, batch_size: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(hidden states, router weights, expert ids) for each layer of a graph."""
        generator = torch.Generator("cuda").manual_seed(batch_size)
        shape = (batch_size, self.problem.K)
        found = []
        for i in range(LAYERS):
            x = torch.randn(shape, device="cuda", generator=generator).bfloat16()
            skew = SKEW if i >= LAYERS - SKEWED else 0.0
            routing = random_routing(self.problem, batch_size, device="cuda", seed=i, skew=skew)
            found.append((x, routing.weights, routing.ids))
        return found

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        problem = self.problem
        return fused_moe.fused_experts_impl(
            x,
            self.up.b,
            self.down.b,
            weights,
            ids,
            use_fp8_w8a8=problem.dtype is Dtype.FP8_W8A8,
            use_int8_w8a8=problem.dtype is Dtype.INT8_W8A8,
            per_channel_quant=problem.per_channel_quant,
            w1_scale=self.up.scale,
            w2_scale=self.down.scale,
            block_shape=list(problem.block_shape) if problem.block_shape else None,
            filter_expert=False,
        )

    def reference(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """(CHECKED_TOKENS, K) float32, from the dense weights."""
        out = torch.zeros((min(len(x), CHECKED_TOKENS), self.problem.K), device="cuda")
        for token in range(len(out)):
            for choice, expert in enumerate(ids[token].tolist()):
                gate, up = (self.up.dense(expert) @ x[token].float()).chunk(2)
                hidden = torch.nn.functional.silu(gate) * up
                out[token] += weights[token, choice] * (self.down.dense(expert) @ hidden)
        return out


def use_root(root: Path | None) -> None:
    """Point the engine's loader at a root, or at its own package."""
    if root is None:
        os.environ.pop("SGLANG_MOE_CONFIG_DIR", None)
    else:
        os.environ["SGLANG_MOE_CONFIG_DIR"] = str(root)
    fused_moe_triton_config.get_moe_configs.cache_clear()


def capture(layer: Layer, inputs: list) -> torch.cuda.CUDAGraph:
    for _ in range(2):
        layer(*inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for args in inputs:
            layer(*args)
    return graph


def gate(problem: FusedMoe, overlay: Path) -> dict:
    layer = Layer(problem)
    rows = []
    with tempfile.TemporaryDirectory() as nothing:
        (Path(nothing) / "configs").mkdir()
        roots = {"tuned": overlay, "shipped": None, "default": Path(nothing)}
        for batch_size in BATCH_SIZES:
            inputs = layer.inputs(batch_size)
            expected = layer.reference(*inputs[0])
            graphs, errors = {}, {}
            for name, root in roots.items():
                use_root(root)
                out = layer(*inputs[0])[: len(expected)].float()
                errors[name] = ((out - expected).norm() / expected.norm()).item()
                graphs[name] = capture(layer, inputs)
            samples = dict(zip(graphs, race(list(graphs.values()), ROUNDS), strict=True))
            medians = {name: statistics.median(some) for name, some in samples.items()}
            rows.append({"batch_size": batch_size, "us": medians, "error": errors})
            print(rows[-1], flush=True)
            del graphs
    return {"problem": problem.spec(), "rows": rows}


def procedure(problem: FusedMoe) -> dict:
    """Seconds a configuration, by batch size; the compile cache starts empty."""
    grid = [
        {
            "BLOCK_SIZE_M": m,
            "BLOCK_SIZE_N": n,
            "BLOCK_SIZE_K": k,
            "GROUP_SIZE_M": group,
            "num_warps": warps,
            "num_stages": stages,
        }
        for stages in (2, 3, 4, 5)
        for m in (16, 32, 64, 128, 256)
        for k in (64, 128, 256)
        for n in (32, 64, 128, 256)
        for warps in (4, 8)
        for group in (1, 16, 32, 64)
        if not problem.block_shape or problem.block_shape[1] % k == 0
    ]
    sample = random.Random(0).sample(grid, PROCEDURE_CONFIGS)  # noqa: S311 (no secret)
    rows = []
    for batch_size in PROCEDURE_BATCH_SIZES:
        for config in sample:
            started = time.perf_counter()
            try:
                latency_us = one_configuration(problem, batch_size, config)
            except RuntimeError as error:
                latency_us = None
                print(type(error).__name__, str(error)[:100])
            seconds = time.perf_counter() - started
            rows.append({"batch_size": batch_size, "seconds": seconds, "us": latency_us})
            print(rows[-1], flush=True)
    return {"problem": problem.spec(), "grid": len(grid), "rows": rows}


def one_configuration(problem: FusedMoe, batch_size: int, config: dict) -> float:
    e, n, k = problem.E, problem.N, problem.K
    x = torch.randn(batch_size, k, dtype=torch.bfloat16, device="cuda")
    w1 = torch.randn(e, 2 * n, k, dtype=torch.float16, device="cuda").to(torch.float8_e4m3fn)
    w2 = torch.randn(e, k, n, dtype=torch.float16, device="cuda").to(torch.float8_e4m3fn)
    assert problem.block_shape is not None
    block_n, block_k = problem.block_shape
    w1_scale = torch.rand(e, -(-2 * n // block_n), -(-k // block_k), device="cuda")
    w2_scale = torch.rand(e, -(-k // block_n), -(-n // block_k), device="cuda")
    gating = torch.randn(10, batch_size, e, device="cuda")
    weights, ids = route(gating[0], problem.top_k)

    def run() -> None:
        with override_config(dict(config)):
            fused_moe.fused_experts_impl(
                x,
                w1,
                w2,
                weights,
                ids,
                use_fp8_w8a8=True,
                w1_scale=w1_scale,
                w2_scale=w2_scale,
                block_shape=list(problem.block_shape or ()),
                filter_expert=False,
            )

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    torch.empty(int(256e6 // 4), dtype=torch.int, device="cuda").zero_()
    events = []
    for i in range(10):
        new_weights, new_ids = route(gating[i], problem.top_k)
        weights.copy_(new_weights)
        ids.copy_(new_ids)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return sum(start.elapsed_time(end) for start, end in events) / 100 * 1e3


def route(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    weights, ids = logits.softmax(-1).topk(top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), ids.to(torch.int32)


def main() -> None:
    publish_settings()
    mode, problem, *rest = sys.argv[1:]
    out = Path(rest[-1])
    parsed = parse_problem(problem)
    result = gate(parsed, Path(rest[0])) if mode == "gate" else procedure(parsed)
    result["device"] = torch.cuda.get_device_name(0)
    out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
