"""Compile a variant of a lifted kernel. Imports triton."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from packaging.version import Version
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from tuner.devices.target import Target
from tuner.kernels.lift import load_lifted

# Triton 3.3 changed how it is given a kernel's constants, at compile time and at launch.
_OLD = Version(triton.__version__) < Version("3.3")
api = import_module("tuner.compile.triton_3_1" if _OLD else "tuner.compile.triton_3_3")


def compile_kernel(source: Path, variant: dict[str, Any], target: Target) -> CompiledKernel:
    """Compile a kernel for a target, or take it from Triton's cache; see `read_kernel`."""
    return compile_source(read_kernel(source, variant), variant["options"], target)


def read_kernel(source: Path, variant: dict[str, Any]) -> ASTSource:
    """Read a variant of a kernel for Triton's compiler.

    `source` is a file that `Lifted.write` made; `variant` is the result of `Variant.as_json`.
    """
    function = getattr(load_lifted(source), variant["function"])
    constants = {name: _constant(value) for name, value in variant["constants"].items()}
    read: ASTSource = api.ast_source(
        function, variant["signature"], constants, variant["divisible"]
    )
    return read


def compile_source(source: ASTSource, options: dict[str, Any], target: Target) -> CompiledKernel:
    """Call Triton's compiler, which may take the kernel from its cache."""
    gpu = GPUTarget(target.platform, target.arch, target.warp_size)
    return triton.compile(source, target=gpu, options=options)


def launch(
    kernel: CompiledKernel,
    grid: tuple[int, int, int],
    values: Sequence[Any],
    stream: int | None = None,
) -> None:
    """Run a kernel once on a stream, or on the current stream.

    `values` has a value for each parameter.
    """
    kernel[grid](*api.launch_arguments(kernel, values), stream=stream)


def _constant(value: object) -> object:
    return tl.dtype(value["dtype"]) if isinstance(value, dict) else value
