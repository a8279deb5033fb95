"""Compile one variant of a lifted kernel. Imports triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from tuner.devices.target import Target
from tuner.kernels.lift import load_lifted


def compile_kernel(source: Path, variant: dict[str, Any], target: Target) -> CompiledKernel:
    """Compile a kernel for a target, or take it from Triton's cache.

    `source` is a file that `Lifted.write` made; `variant` is the result of `Variant.as_json`.
    """
    function = getattr(load_lifted(source), variant["function"])
    names = list(variant["signature"])
    constants = {(names.index(k),): _constant(v) for k, v in variant["constants"].items()}
    attributes = {(names.index(k),): [["tt.divisibility", 16]] for k in variant["divisible"]}
    return triton.compile(
        ASTSource(function, variant["signature"], constants, attributes),
        target=GPUTarget(target.backend, target.arch, target.warp_size),
        options=variant["options"],
    )


def _constant(value: object) -> object:
    return tl.dtype(value["dtype"]) if isinstance(value, dict) else value
