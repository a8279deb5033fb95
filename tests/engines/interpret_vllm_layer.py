"""Runs vLLM's own layer on the CPU, with stand-ins for its compiled parts; writes errors as JSON.

This is a separate program, because Triton decides on import whether to interpret:
TRITON_INTERPRET=1 python interpret_vllm_layer.py 0.33.0
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path

import torch
from vllm_stand_ins import served_layer

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.engine import MoeEngine, moe_engine
from tuner.families.fused_moe.inputs import random_routing
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.registry import parse_problem

# bf16 operands come out wrong in the interpreter.
PROBLEMS = {
    "fp16": "fused_moe:E=16,N=32,K=64,top_k=2,dtype=float16",
    "fp8 blocks": "fused_moe:E=8,N=64,K=64,top_k=2,dtype=fp8_w8a8,block_shape=32x32",
}
SIZES = (1, 5)  # slots are not sorted and sorted, where a release does not sort few
TUNED = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 32,
    "BLOCK_SIZE_K": 32,
    "GROUP_SIZE_M": 4,
    "num_warps": 4,
    "num_stages": 3,
}
CARD = find_device("H100")


def errors(served, engine: MoeEngine, problem: FusedMoe, size: int) -> dict[str, float]:
    """The layer's error with an exported file, and without files."""
    EngineLayer = importlib.import_module("vllm_layer").EngineLayer
    layer = EngineLayer(served, problem, device="cpu")
    generator = torch.Generator().manual_seed(size)
    routing = random_routing(problem, size, device="cpu", seed=size)
    x = torch.randn((size, problem.K), generator=generator).half()
    expected = layer.reference(x, routing.weights, routing.ids)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        path = engine.config_dir(root, "3.6.0") / engine.file_name(problem, CARD, Gemm.UP)
        path.write_text(json.dumps({"8": TUNED}))
        for name in ("tuned", "default"):
            layer.use(name, root)
            out = layer(x, routing.weights, routing.ids).float()
            found[name] = ((out - expected).norm() / expected.norm()).item()
    return found


def main() -> None:
    (version,) = sys.argv[1:]
    engine = find_engine(f"vllm=={version}")
    served = served_layer(engine.root, CARD.name.replace("_", " "), 90)
    launched = []
    served_module = sys.modules["vllm.model_executor.layers.fused_moe.fused_moe"]
    choose = served_module.try_get_optimal_moe_config
    served_module.try_get_optimal_moe_config = lambda *args, **kwargs: (
        launched.append(choose(*args, **kwargs)) or launched[-1]
    )
    found = {}
    for name, text in PROBLEMS.items():
        for size in SIZES:
            launched.clear()
            result = errors(served, moe_engine(engine), parse_problem(text), size)
            found[f"{name} {size}"] = {**result, "file is read": launched[0] == TUNED}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
