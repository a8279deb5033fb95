"""What sglang's tuning script does for one configuration, timed on random ones of its grid.

    python benchmarks/h200/procedure.py PROBLEM OUT.json

For each configuration: fresh tensors, compile, a CUDA graph of 10 layers, 5 + 10 replays with new
routings. Needs a GPU and an importable sglang.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import torch
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe, override_config

from tuner.engines.sglang.fused_moe.engine_layer import publish_settings
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.registry import parse_problem

PROCEDURE_BATCH_SIZES = (2, 16, 128, 1024, 4096)
PROCEDURE_CONFIGS = 10


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
    problem, out = parse_problem(sys.argv[1]), Path(sys.argv[2])
    publish_settings()
    result = {**procedure(problem), "device": torch.cuda.get_device_name(0)}
    out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
