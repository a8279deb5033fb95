"""Runs one engine's fused-MoE kernels on the CPU and writes each case's error as JSON.

This is a separate program, because Triton decides on import whether to interpret:
TRITON_INTERPRET=1 python interpret_fused_moe.py sglang==0.5.16 CACHE_FOLDER
"""

import inspect
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.errors import UnsupportedKernel
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.inputs import (
    Activations,
    Routing,
    Slots,
    Weights,
    launch,
    local_slots,
    make_activations,
    make_weights,
    operands,
    random_routing,
    reference,
    slots_for,
    sort_activations,
)
from tuner.families.fused_moe.problem import Gemm
from tuner.kernels.binding import Binding, Constant
from tuner.kernels.lift import load_lifted
from tuner.measure.timing import Reference
from tuner.problems.points import Config
from tuner.problems.registry import parse_problem

SHAPE = "fused_moe:E=5,N=64,K=96,top_k=3,dtype="
MANY = "fused_moe:E=96,N=32,K=64,top_k=3,dtype=float16"
BLOCKS = "fused_moe:E=5,N=64,K=128,top_k=3,dtype="
TILE = Config(
    {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 2, "num_warps": 4}
)
FP8, WIDE = f"{BLOCKS}fp8_w8a8,block_shape=32x32", TILE.replace(BLOCK_SIZE_N=64)
# name -> (problem, config, compute type, zero points, architecture)
CASES = {
    "fp16": (f"{SHAPE}float16", TILE, "fp16", False, 89),
    "fp16 uneven k": (f"{SHAPE}float16", TILE.replace(BLOCK_SIZE_K=128), "fp16", False, 89),
    "fp8 tensor": (f"{SHAPE}fp8_w8a8", TILE, "bf16", False, 89),
    "fp8 channel": (f"{SHAPE}fp8_w8a8,per_channel_quant", TILE, "bf16", False, 89),
    "fp8 block": (FP8, TILE, "bf16", False, 89),
    "fp8 block wide": (FP8, WIDE, "bf16", False, 89),
    "fp8 block swapped": (FP8.replace("=32x", "=64x"), WIDE, "bf16", False, 90),
    "fp16 many experts": (MANY, TILE, "fp16", False, 89),  # vLLM does not sort so few slots
    "int8 channel": (f"{SHAPE}int8_w8a8,per_channel_quant", TILE, "bf16", False, 89),
    "int8 block": (f"{BLOCKS}int8_w8a8,block_shape=32x32", TILE, "bf16", False, 89),
    "int8 weights": (f"{SHAPE}int8_w8a16", TILE, "fp16", False, 89),
    "int8 groups": (f"{BLOCKS}int8_w8a16,block_shape=0x32", TILE, "fp16", False, 89),
    "int8 groups zero": (f"{BLOCKS}int8_w8a16,block_shape=0x32", TILE, "fp16", True, 89),
    "int4": (f"{BLOCKS}int4_w4a16,block_shape=0x32", TILE, "fp16", False, 89),
    "int4 zero": (f"{BLOCKS}int4_w4a16,block_shape=0x32", TILE, "fp16", True, 89),
    "fp8 block tma": (FP8, TILE.replace(USE_TMA=1), "bf16", False, 90),
    "fp8 block up tma": (FP8, TILE.replace(USE_TMA=1), "bf16", False, 90),
    "fp16 of 4 ranks": (f"{SHAPE}float16,ep=4", TILE, "fp16", False, 89),
    "fp8 block of 4 ranks tma": (f"{FP8},ep=4", TILE.replace(USE_TMA=1), "bf16", False, 90),
    "int4 of 2 ranks": (f"{BLOCKS}int4_w4a16,block_shape=0x32,ep=2", TILE, "fp16", False, 89),
    "fp16 shared": (f"{SHAPE}float16,shared_experts=1", TILE, "fp16", False, 89),
}
BATCH_SIZE = 7


@dataclass
class Prepared:
    """One case, ready to launch on the CPU."""

    binding: Binding
    weights: Weights
    activations: Activations
    routing: Routing
    slots: Slots
    tensors: dict[str, torch.Tensor]


def prepare(kernels, name, gemm):
    text, config, compute, zero_points, arch = CASES[name]
    problem = parse_problem(text)
    tma = bool(config.get("USE_TMA"))
    asked = {}
    # What the down gemm's TMA asks of the up gemm, where an engine has that.
    of_down = gemm is Gemm.UP and tma and "up tma" not in name
    if of_down and "sorted_output" in inspect.signature(kernels.bind).parameters:
        config = config.replace(USE_TMA=0)
        asked["sorted_output"] = True
    binding = kernels.bind(
        problem,
        gemm,
        BATCH_SIZE,
        config,
        cuda_target(*divmod(arch, 10)),
        **asked,
        zero_points=zero_points,
        compute=compute,
    )
    like = {"device": "cpu", "seed": 1}
    weights = make_weights(problem, gemm, compute=compute, zero_points=zero_points, **like)
    activations = make_activations(problem, gemm, BATCH_SIZE, compute=compute, **like)
    routing = random_routing(problem, BATCH_SIZE, skew=1.0, **like)
    (slots,) = slots_for(binding, [routing], problem.E, foreign_blocks=kernels.foreign_blocks)
    rows = slots.sorted_ids.numel() if tma else routing.ids.numel()
    dtype = torch.float16 if compute == "fp16" else torch.bfloat16
    output = torch.full((rows, problem.gemm_shape(gemm)[0]), float("nan"), dtype=dtype)
    a = sort_activations(activations, slots, rows) if tma and gemm is Gemm.DOWN else activations
    tensors = operands(weights, a, routing, slots, output)
    return Prepared(binding, weights, activations, routing, slots, tensors)


def run(kernels, module, name, gemm):
    case = prepare(kernels, name, gemm)
    binding = case.binding
    if "USE_GDC" in binding.arguments:  # PTX, which only a GPU runs; it orders launches, no more
        binding = replace(binding, arguments={**binding.arguments, "USE_GDC": Constant(False)})
    launch(module, binding, case.tensors)
    output, count = case.tensors["c_ptr"], case.routing.ids.numel()
    if binding.arguments.get("c_sorted") == Constant(True):
        valid = (case.slots.sorted_ids < count).nonzero().view(-1)
        unsorted = torch.full((count, output.shape[1]), float("nan"), dtype=output.dtype)
        unsorted[case.slots.sorted_ids[valid].long()] = output[valid]
        output = unsorted
    rows = local_slots(case.routing)
    expected = reference(case.weights, case.activations, case.routing, rows)
    return Reference(expected).worst_error(output[rows])


def main():
    engine, folder = sys.argv[1:]
    kernels = moe_engine(find_engine(engine)).lift()
    module = load_lifted(kernels.lifted.write(Path(folder)))
    found = {}
    for name in CASES:
        for gemm in Gemm:
            try:
                found[f"{name} {gemm.value}"] = run(kernels, module, name, gemm)
            except UnsupportedKernel as error:
                found[f"{name} {gemm.value}"] = str(error)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
