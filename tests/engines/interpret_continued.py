"""Runs sglang's own launchers on the CPU with prompts that continue, and writes errors as JSON.

TRITON_INTERPRET=1 python interpret_continued.py sglang==0.5.16
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path

import torch
from triton.runtime.interpreter import InterpretedFunction, interpreter_builder

from tuner.engines.engine import find_engine
from tuner.families.scans.chunk_scan.problem import ChunkScan, SsdKernel
from tuner.problems.points import Config

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
scan_continues = importlib.import_module("scan_continues")

# The interpreter multiplies no bfloat16.
PROBLEM = "chunk_scan:heads=1,head_dim=16,groups=1,state_size=16,chunk_size=32,dtype=float16"
LAUNCH = {"num_warps": 4, "num_stages": 1}
TILES = ((16, 16, 32), (32, 16, 16))


def main() -> None:
    # To look for overflows of each product takes half of the time.
    object.__setattr__(interpreter_builder.options, "sanitize_overflow", False)
    torch.cpu.device = lambda index: contextlib.nullcontext()
    engine = find_engine(sys.argv[1])
    scan_continues.LENGTHS = (20, 34, 3, 2, 5)
    problem = ChunkScan.parse(PROBLEM)
    batch = scan_continues.Continued(problem, "cpu")
    name = scan_continues.stand_in(engine.name, engine.version, problem.family)
    combined, chosen = importlib.import_module(name), {}
    scan_continues.give(InterpretedFunction, chosen)
    scan_continues.one_of_each(combined)
    names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
    tiles = [Config({**dict(zip(names, tile, strict=True)), **LAUNCH}) for tile in TILES]
    sizes = [Config({"BLOCK_SIZE": size, **LAUNCH}) for size in (64, 256)]
    heads = [Config({"BLOCK_SIZE_H": size, **LAUNCH}) for size in (1, 4)]
    configs = {SsdKernel.CUMSUM: heads, SsdKernel.PASSING: sizes}
    rows = [
        row
        for part in problem.parts
        for row in scan_continues.tried(
            part, configs.get(part, tiles), lambda: batch.error(combined), chosen
        )
    ]
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
