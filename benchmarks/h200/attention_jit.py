"""What Triton's own JIT compiles on this GPU, for 60 configurations of attention's spaces.

    python benchmarks/h200/attention_jit.py OUT.json

The tests compile the same for the same architecture without a GPU and compare.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from attention_sweep import SWEEP

from tuner.devices.table import find_device
from tuner.devices.target import Target
from tuner.engines.engine import find_engine
from tuner.engines.sglang.attention.binding import CHOICES, SGLangAttentionKernels, lift_attention
from tuner.families.attention.inputs import launch, make_inputs
from tuner.families.attention.lengths import EDGES
from tuner.families.attention.problem import Attention, parse_attention
from tuner.families.attention.space import attention_space
from tuner.kernels.lift import load_lifted
from tuner.problems.points import Config, Point

SAMPLES = 60


def main() -> None:
    device, engine = find_device("H200"), find_engine("sglang")
    kernels = lift_attention(engine)
    problems = [parse_attention(text) for text, _ in SWEEP]
    choices = [
        (problem, stage, config)
        for problem in problems
        for stage in problem.parts
        for config in attention_space(problem, device, stage, CHOICES[stage]).configs()
    ]
    found: list[dict[str, Any]] = []
    for problem, stage, config in random.Random(7).sample(choices, 2 * SAMPLES):
        point = Point(6, stage, 129, 257)
        try:
            figures = compiled(kernels, problem, point, config, device.target)
        except triton.runtime.errors.OutOfResources as error:
            figures = {"refused": str(error), "shared_bytes": error.required}
        found.append(
            {
                "problem": problem.spec(),
                "part": stage.value,
                "config": dict(config),
                "default": dict(kernels.default_config(problem, point, device.target)),
                **figures,
            }
        )
        if len(found) >= SAMPLES:
            break
    about = {"engine": engine.version, "triton": triton.__version__, "torch": torch.__version__}
    about["device"] = torch.cuda.get_device_name(0)
    Path(sys.argv[1]).write_text(json.dumps({**about, "kernels": found}, indent=1) + "\n")
    print(f"{len(found)} kernels")


def compiled(
    kernels: SGLangAttentionKernels,
    problem: Attention,
    point: Point,
    config: Config,
    target: Target,
) -> dict[str, Any]:
    folder = Path(tempfile.gettempdir()) / "lifted"
    module = load_lifted(kernels.lifted(problem.phase).write(folder))
    inputs = make_inputs(kernels, problem, EDGES[problem.phase], device="cuda", seed=1, cores=132)
    kernel = launch(module, kernels, problem, point, config, target, inputs.tensors)
    torch.cuda.synchronize()
    return {
        "shared_bytes": kernel.metadata.shared,
        "n_regs": kernel.n_regs,
        "n_spills": kernel.n_spills,
    }


if __name__ == "__main__":
    main()
