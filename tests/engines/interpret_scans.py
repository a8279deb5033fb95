"""Runs an engine's chunked scan on the CPU and writes each case's errors as JSON.

This is a separate program, because Triton decides on import whether to interpret:
TRITON_INTERPRET=1 python interpret_scans.py sglang==0.5.16 chunk_scan CACHE_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.families.scans.batch import ScanBatches, written
from tuner.families.scans.engine import scan_engine
from tuner.families.scans.scan import scan_named
from tuner.kernels.lift import load_lifted
from tuner.kernels.values import launch_values
from tuner.problems.points import Config, Point

# family -> name -> (problem, sequences, tokens of each)
# The interpreter multiplies no bfloat16.
_SSD = "heads=4,head_dim=16,groups=2,state_size=16,chunk_size=16,dtype=float16"
_DELTA = "key_heads=1,value_heads=2,key_dim=64,value_dim=32,dtype=float16"
CASES = {
    "chunk_scan": {
        "a last chunk that is not whole": (_SSD, 1, 40),
        "two sequences": (_SSD, 2, 32),
        "masked": (
            "heads=3,head_dim=24,groups=1,state_size=16,chunk_size=32,dtype=float16,state_dtype=float16",
            1,
            64,
        ),
    },
    "gated_delta": {
        "a last chunk that is not whole": (_DELTA, 1, 150),
        "two sequences": (_DELTA, 2, 64),
        "wide keys": (
            "key_heads=2,value_heads=2,key_dim=128,value_dim=64,dtype=float16,state_dtype=float16",
            1,
            64,
        ),
    },
}
TARGET = cuda_target(9, 0)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def exp2(x):
    return tl.exp2(x)


@triton.jit
def log(x):
    return tl.log(x)


def counted(*bounds):
    """`range`, whose numbers are tensors in a compiled kernel, with methods such as `to`."""
    plain = all(isinstance(bound, int) for bound in bounds)
    for number in range(*map(int, bounds)):
        yield number if plain else tl.full((), number, tl.int32)


def run(kernels, module, family: str, name: str) -> dict[str, float]:
    text, sequences, tokens = CASES[family][name]
    chain = "".join(f",chain={chain}" for chain in kernels.scan.chains)
    problem = scan_named(family).parse(f"{family}:{text}{chain}")
    batches = ScanBatches(problem, kernels, seed=1, l2_bytes=1, device="cpu")
    batch = batches.at(Point(sequences, problem.parts[0], tokens))
    errors = {}
    all_written: set[str] = set()
    for separate in (True, False):  # with the reference's tensors, then with those of the chain
        if not separate:
            batch.clear(all_written)
        for part, tuned in kernels.kernels.items():
            point = Point(sequences, part, tokens)
            least = {name: values[0] for name, values in tuned.blocks.items()}
            config = Config({**least, "num_warps": 4, "num_stages": 1})
            launches = kernels.launches(problem, point, config, TARGET)
            names = written(problem, launches, point)
            all_written |= names
            if separate:
                batch.clear(names)
            for launch in launches:
                check_strides(launch.binding, batch.copies[0])
                values = launch_values(launch.binding, batch.copies[0])
                getattr(module, launch.binding.function)[launch.grid](*values)
            if separate:
                errors[part.value] = batch.error(names)
                batch.restore(names)
    return {**errors, "chain": batch.error({"out"})}


def check_strides(binding, tensors: dict[str, torch.Tensor]) -> None:
    """x lies as the launcher was told."""
    found = binding.arguments
    if "stride_x_seqlen" in found:
        given = [found[f"stride_x_{one}"].value for one in ("seqlen", "head", "hdim")]
        assert given == list(tensors["x"].stride())
    if "stride_dt_seqlen" in found:
        assert found["stride_dt_seqlen"].value == tensors["dt"].stride(0)


def main() -> None:
    engine, family, folder = sys.argv[1:]
    kernels = scan_engine(find_engine(engine), family).lift()
    module = load_lifted(kernels.lifted.write(Path(folder)))
    # The interpreter does not know Triton's functions by other names.
    vars(module).update(exp=exp, exp2=exp2, log=log, range=counted)
    vars(module)["libdevice"] = SimpleNamespace(exp=exp)
    json.dump({name: run(kernels, module, family, name) for name in CASES[family]}, sys.stdout)


if __name__ == "__main__":
    main()
