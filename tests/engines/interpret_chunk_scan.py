"""Runs an engine's chunked scan on the CPU and writes each case's errors as JSON.

This is a separate program, because Triton decides on import whether to interpret:
TRITON_INTERPRET=1 python interpret_chunk_scan.py sglang==0.5.16 CACHE_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.families.scans.batch import ScanBatches, written
from tuner.families.scans.engine import scan_engine
from tuner.families.chunk_scan.problem import ScanKernel, parse_chunk_scan
from tuner.kernels.lift import load_lifted
from tuner.kernels.values import launch_values
from tuner.problems.points import Config, Point

# name -> (problem, sequences, tokens of each)
# The interpreter multiplies no bfloat16.
CASES = {
    "a last chunk that is not whole": (
        "heads=4,head_dim=16,groups=2,state_size=16,chunk_size=16,dtype=float16",
        1,
        40,
    ),
    "two sequences": (
        "heads=4,head_dim=16,groups=2,state_size=16,chunk_size=16,dtype=float16",
        2,
        32,
    ),
    "masked": (
        "heads=3,head_dim=24,groups=1,state_size=16,chunk_size=32,dtype=float16,state_dtype=float16",
        1,
        64,
    ),
}
TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 16}
CONFIGS = {
    ScanKernel.CUMSUM: {"BLOCK_SIZE_H": 2},
    ScanKernel.PASSING: {"BLOCK_SIZE": 64},
}
TARGET = cuda_target(9, 0)


def run(kernels, module, name: str) -> dict[str, float]:
    text, sequences, tokens = CASES[name]
    problem = parse_chunk_scan(f"chunk_scan:{text}")
    batches = ScanBatches(problem, kernels, seed=1, l2_bytes=1, device="cpu")
    batch = batches.at(Point(sequences, ScanKernel.SCAN, tokens))
    errors = {}
    chain: dict[str, float] = {}
    for separate in (True, False):  # with the reference's tensors, then with those of the chain
        if not separate:
            batch.clear({name for name in batch.expected if name in batch.copies[0]})
        order = list(ScanKernel)
        for part in order:
            point = Point(sequences, part, tokens)
            config = Config({**CONFIGS.get(part, TILE), "num_warps": 4, "num_stages": 1})
            launches = kernels.launches(problem, point, config, TARGET)
            names = written(launches, point)
            if separate:
                batch.clear(names)
            for launch in launches:
                check_strides(launch.binding, batch.copies[0])
                values = launch_values(launch.binding, batch.copies[0])
                getattr(module, launch.binding.function)[launch.grid](*values)
            if separate:
                errors[part.value] = batch.error(names)
                batch.restore(names)
            elif part is ScanKernel.SCAN:
                chain["chain"] = batch.error({"out"})
    return {**errors, **chain}


def check_strides(binding, tensors: dict[str, torch.Tensor]) -> None:
    """x lies as the launcher was told."""
    found = binding.arguments
    if "stride_x_seqlen" in found:
        given = [found[f"stride_x_{one}"].value for one in ("seqlen", "head", "hdim")]
        assert given == list(tensors["x"].stride())
    if "stride_dt_seqlen" in found:
        assert found["stride_dt_seqlen"].value == tensors["dt"].stride(0)


def main() -> None:
    engine, folder = sys.argv[1:]
    kernels = scan_engine(find_engine(engine)).lift()
    module = load_lifted(kernels.lifted.write(Path(folder)))
    json.dump({name: run(kernels, module, name) for name in CASES}, sys.stdout)


if __name__ == "__main__":
    main()
