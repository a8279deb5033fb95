"""Find the dense GEMM kernels in a copy of sglang, and lift their source."""

from __future__ import annotations

from pathlib import Path

from tuner.bindings.sglang.plugin.gemm_loaders import FP8_BLOCKS, INT8_BLOCKS, PACKAGES, Loader
from tuner.devices.target import CUDA
from tuner.engines.sglang.package import SGLang
from tuner.kernels.lift import Lifted, find_source, lift_files

FP8_KERNELS = (
    "_w8a8_block_fp8_matmul",
    "_w8a8_block_fp8_matmul_hopper",
    "_reduce_block_fp8_split_k",
    "scaled_mm_kernel",
)
INT8_KERNELS = ("_w8a8_block_int8_matmul",)
_FOLDERS = tuple(package.removeprefix("sglang.").replace(".", "/") for package in PACKAGES)


def fp8_source(engine: SGLang) -> Path:
    """Return the file of fp8's kernels; `configs/` lies beside it. Raises UnsupportedKernel."""
    return _source(engine, FP8_BLOCKS)


def int8_source(engine: SGLang) -> Path:
    """Return the file of the kernel for int8 blocks. Raises UnsupportedKernel."""
    return _source(engine, INT8_BLOCKS)


def lift_kernels(engine: SGLang, platform: str = CUDA) -> Lifted:
    """Return all dense GEMM kernels that a version has. Raises UnsupportedKernel; see
    `lift_files`.
    """
    files = {fp8_source(engine): FP8_KERNELS, int8_source(engine): INT8_KERNELS}
    return lift_files(files, engine.root, f"{engine.name} {engine.version}", platform)


def _source(engine: SGLang, loader: Loader) -> Path:
    places = [f"{folder}/{loader.module}.py" for folder in _FOLDERS]
    return find_source(engine.root, f"{engine.name} {engine.version}", loader.function, places)
