"""Run CUTLASS's kernels as engines ship them: `sgl_kernel`, or vLLM's custom operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from torch import Tensor

from tuner.backends.operands import Call, GemmOperands, Unsupported, need, this_target

BLOCK = (128, 128)
# sglang's function for blocks, by release; sgl_kernel had it before. It refuses other cards
# than these.
_COMPILED_AT_FIRST = (
    "sglang.jit_kernel.fp8_blockwise_gemm",  # 0.5.16
    "sglang.kernels.ops.gemm.fp8_blockwise_gemm",  # 0.5.23
)
_ITS_CARDS = ("sm_120", "sm_121")


def gemm(batch: Sequence[GemmOperands]) -> list[Call]:
    first = batch[0]
    need(first.block in (None, BLOCK), "CUTLASS takes blocks of 128x128 alone")
    need(first.fp8 or first.block is None, "CUTLASS takes no blocks of int8")
    n, k = first.b.shape
    need(n % 16 == 0 and k % 16 == 0, "CUTLASS takes N and K that divide by 16")
    need(
        first.block is None or (n % 128 == 0 and k % 128 == 0),
        "engines run CUTLASS on blocks where N and K divide by 128",
    )
    multiply = _function(first)
    return [_call(one, multiply) for one in batch]


def _call(one: GemmOperands, multiply: Callable[..., Tensor]) -> Call:
    b = one.b.t()
    if one.block is None:
        scales = one.a_scale, one.b_scale
    else:  # both with the rows, which are K's blocks for B, next to each other
        scales = one.a_scale.t().contiguous().t(), one.b_scale.t()
    return lambda: multiply(one.a, b, *scales, one.out.dtype)


def _function(one: GemmOperands) -> Callable[..., Tensor]:
    """Return the function of the first package that has it. Raises Unsupported if none has."""
    name = "fp8_scaled_mm" if one.fp8 else "int8_scaled_mm"
    if one.block is not None:
        name = "fp8_blockwise_scaled_mm"
    places = [("sgl_kernel", name)]
    if one.block is not None:
        places += [(module, name) for module in _COMPILED_AT_FIRST]
    if one.a.dtype is not one.b.dtype:
        raise Unsupported("A and B have different types")
    places.append(("vllm._custom_ops", "cutlass_scaled_mm"))
    refused = ""
    for module, function in places:
        if module in _COMPILED_AT_FIRST and this_target() not in _ITS_CARDS:
            refused = f", and sglang's takes {' and '.join(_ITS_CARDS)} alone"
            continue
        found = _imported(module)
        if found is not None and hasattr(found, function):
            multiply: Callable[..., Tensor] = getattr(found, function)
            return multiply
    raise Unsupported(f"no installed package has {name} for {this_target()}{refused}")


def _imported(module: str) -> Any:  # noqa: ANN401 (a module, or None)
    try:
        return import_module(module)
    except ImportError:
        return None
