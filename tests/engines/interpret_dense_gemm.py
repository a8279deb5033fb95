"""Runs one engine's dense GEMM kernels on the CPU and writes each case's error as JSON.

This is a separate program, because Triton decides on import whether to interpret:
TRITON_INTERPRET=1 python interpret_dense_gemm.py 0.5.23 CACHE_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.errors import UnsupportedKernel
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.problem import DenseGemm, parse_dense_gemm
from tuner.kernels.lift import load_lifted
from tuner.kernels.values import launch_values
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config

TILE = Config(
    {
        "BLOCK_SIZE_M": 16,
        "BLOCK_SIZE_N": 32,
        "BLOCK_SIZE_K": 32,
        "GROUP_SIZE_M": 2,
        "num_warps": 4,
        "num_stages": 3,
    }
)
CHANNEL_TILE = Config({k: v for k, v in TILE.items() if k != "GROUP_SIZE_M"})
BLOCKS = "block_gemm:N=200,K=384,dtype={},block=128x128,out={}"
SMALL = "block_gemm:N=80,K=160,dtype={},block=32x32,out=float16"
CHANNEL = "channel_gemm:N=200,K=384,dtype={},out={}"
FP8, FP8_BF16 = (BLOCKS.format("fp8_w8a8", out) for out in ("float16", "bfloat16"))
UNEVEN = FP8.replace("K=384", "K=368")  # no multiple of BLOCK_SIZE_K: the last step is masked
FP8_32 = SMALL.format("fp8_w8a8")
# name -> (problem, M, configuration; None: the engine's default, architecture)
CASES = {
    "fp8 128": (FP8, 21, TILE, 89),
    "fp8 128 default": (FP8_BF16, 21, None, 89),
    "fp8 128 one row": (FP8_BF16, 1, TILE, 90),
    "fp8 128 wide": (FP8, 21, TILE.replace(BLOCK_SIZE_N=128, BLOCK_SIZE_K=128), 90),
    "fp8 128 uneven k": (UNEVEN, 21, TILE, 89),
    "fp8 32": (FP8_32, 21, TILE, 89),
    "fp8 32 half": (FP8_32, 21, TILE.replace(BLOCK_SIZE_K=16), 89),
    "int8 128": (BLOCKS.format("int8_w8a8", "float16"), 21, TILE, 89),
    "int8 128 default": (BLOCKS.format("int8_w8a8", "bfloat16"), 21, None, 90),
    "fp8 channel": (CHANNEL.format("fp8_w8a8", "float16"), 21, CHANNEL_TILE, 89),
    "fp8 channel default": (CHANNEL.format("fp8_w8a8", "bfloat16"), 21, None, 89),
    "fp8 channel one row": (CHANNEL.format("fp8_w8a8", "float16"), 1, None, 89),
    "int8 channel default": (CHANNEL.format("int8_w8a8", "float16"), 21, None, 89),
    "fp8 128 swapped": (FP8, 21, TILE.replace(SWAP_AB=1), 90),
    "fp8 128 split": (FP8, 21, TILE.replace(SPLIT_K=2), 90),
    # 5 steps of 32 for 4 splits: 2, 2, 1 and none.
    "fp8 32 swapped and split": (FP8_32, 5, TILE.replace(SWAP_AB=1, SPLIT_K=4), 90),
}
OUTPUT = {Dtype.BFLOAT16: torch.bfloat16, Dtype.FLOAT16: torch.float16}
SCRATCH = {"fp32": torch.float32}


def operands(problem: DenseGemm, M: int) -> dict[str, torch.Tensor]:
    """Tensors with scales that differ from block to block; the output is NaN."""
    torch.manual_seed(7)
    N, K = problem.N, problem.K
    n, k = problem.block or (1, K)
    a, b = torch.randn(M, K), torch.randn(N, K)
    if problem.dtype is Dtype.FP8_W8A8:
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    else:
        a, b = (a * 40).clamp(-127, 127).to(torch.int8), (b * 40).clamp(-127, 127).to(torch.int8)
    small = 1e-3 if problem.dtype is Dtype.INT8_W8A8 else 1.0  # or float16 overflows
    return {
        "a": a,
        "b": b,
        "a_scale": (torch.rand(M, -(-K // k)) + 0.5) * small,
        "b_scale": torch.rand(-(-N // n), -(-K // k)) + 0.5,
        "c": torch.full((M, N), float("nan"), dtype=OUTPUT[problem.out]),
    }


def reference(problem: DenseGemm, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The dense product of dequantised operands, in float64."""
    n, k = problem.block or (1, problem.K)
    a = tensors["a"].double() * _spread(tensors["a_scale"], (1, k), tensors["a"].shape)
    b = tensors["b"].double() * _spread(tensors["b_scale"], (n, k), tensors["b"].shape)
    return a @ b.t()


def _spread(scale: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    wide = scale.double().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[: shape[0], : shape[1]]


def run(kernels, module, name: str) -> float:
    text, M, config, arch = CASES[name]
    problem, target = parse_dense_gemm(text), cuda_target(*divmod(arch, 10))
    tensors = operands(problem, M)
    config = config or kernels.default_config(problem, M, target)
    launches = kernels.launches(problem, M, config, target)
    for launch in launches:
        for scratch, (shape, kind) in launch.scratch.items():
            if scratch not in tensors:
                tensors[scratch] = torch.full(shape, float("nan"), dtype=SCRATCH[kind])
    for launch in launches:
        values = launch_values(launch.binding, tensors)
        getattr(module, launch.binding.function)[launch.grid](*values, **launch.binding.options)
    expected = reference(problem, tensors)
    found = tensors["c"].double()
    return float((found - expected).abs().max() / expected.abs().max())


def main() -> None:
    version, folder = sys.argv[1:]
    kernels = gemm_engine(find_engine(f"sglang=={version}")).lift()
    module = load_lifted(kernels.lifted.write(Path(folder)))
    found: dict[str, float | str] = {}
    for name in CASES:
        try:
            found[name] = run(kernels, module, name)
        except UnsupportedKernel as error:
            found[name] = str(error)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
