"""Runs vLLM's state update on the CPU and writes each case's errors as JSON.

This is a separate program, because Triton decides on import whether to interpret:
TRITON_INTERPRET=1 python interpret_state_update.py 0.33.0 CACHE_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.families.state_update.engine import state_engine
from tuner.families.state_update.inputs import (
    make_layer,
    make_states,
    make_step,
    operands,
    reference,
)
from tuner.families.state_update.problem import parse_state_update
from tuner.kernels.lift import load_lifted
from tuner.kernels.values import launch_values
from tuner.measure.timing import Reference
from tuner.problems.points import Config

# name -> (problem, sequences, BLOCK_SIZE_M, warps)
CASES = {
    "float32 states": ("heads=4,head_dim=64,state_size=128,groups=2,cache_dtype=float32", 3, 16, 4),
    "bfloat16 states": ("heads=4,head_dim=64,state_size=128,groups=2", 3, 64, 1),
    "float16 everywhere": (
        "heads=4,head_dim=32,state_size=16,groups=1,dtype=float16,cache_dtype=float16",
        2,
        4,
        1,
    ),
    "one sequence": ("heads=4,head_dim=64,state_size=64,groups=4,cache_dtype=float32", 1, 16, 2),
    # Neither number is a power of two, so rows and columns are masked.
    "masked": ("heads=3,head_dim=80,state_size=96,groups=1,cache_dtype=float32", 2, 32, 4),
    "a block larger than a head": ("heads=2,head_dim=16,state_size=32,groups=1", 2, 64, 4),
}


def run(kernels, module, name: str) -> dict[str, float | bool]:
    text, sequences, rows, warps = CASES[name]
    problem = parse_state_update(f"state_update:{text}")
    slots = torch.randperm(2 * sequences, generator=torch.Generator().manual_seed(3))[:sequences]
    layer = make_layer(problem, device="cpu", seed=1)
    states = make_states(problem, 2 * sequences, device="cpu", seed=2)
    step = make_step(problem, sequences, slots, device="cpu", seed=3)
    step.out.fill_(float("nan"))
    used = step.indices[:, 0].long()
    before = states.clone()
    out, expected = reference(problem, layer, step, before[used], torch.arange(sequences))
    config = Config({"BLOCK_SIZE_M": rows, "num_warps": warps})
    launch = kernels.launch(problem, sequences, config, cuda_target(9, 0))
    tensors = operands(problem, layer, step, states)
    check_strides(launch.binding, tensors)
    values = launch_values(launch.binding, tensors)
    getattr(module, launch.binding.function)[launch.grid](*values, **launch.binding.options)
    others = [slot for slot in range(len(states)) if slot not in used.tolist()]
    return {
        "out": Reference(out).worst_error(step.out),
        "state": Reference(expected).worst_error(states[used]),
        "others_stay": bool(torch.equal(states[others], before[others])),
    }


def check_strides(binding, tensors: dict[str, torch.Tensor]) -> None:
    """The tensors lie as the launcher was told."""
    dimensions = ("batch", "group", "head", "dim", "dstate")
    for name in ("x", "dt", "A", "B", "C", "D", "dt_bias", "out"):
        parameters = [f"stride_{name}_{one}" for one in dimensions]
        given = [argument.value for p, argument in binding.arguments.items() if p in parameters]
        assert given == list(tensors[name].stride()), (name, given, tensors[name].stride())


def main() -> None:
    version, folder = sys.argv[1:]
    kernels = state_engine(find_engine(f"vllm=={version}")).lift()
    module = load_lifted(kernels.lifted.write(Path(folder)))
    json.dump({name: run(kernels, module, name) for name in CASES}, sys.stdout)


if __name__ == "__main__":
    main()
