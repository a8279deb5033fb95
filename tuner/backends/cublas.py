"""Run cuBLAS through torch: fp8 with scales for rows or blocks, and int8.

torch's fp8 product with scales for rows is CUTLASS's. An engine that calls torch gets it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tuner.backends.operands import Call, GemmOperands, need

BLOCK = (128, 128)
LEAST_ROWS = 17  # of A, for torch._int_mm on a GPU


def gemm(batch: Sequence[GemmOperands]) -> list[Call]:
    first = batch[0]
    n, k = first.b.shape
    need(n % 16 == 0 and k % 16 == 0, "torch takes N and K that divide by 16")
    if first.fp8:
        need(first.block in (None, BLOCK), "torch takes blocks of 128x128 alone")
        need(first.out.dtype is torch.bfloat16, "torch writes bfloat16 alone with such scales")
        return [_fp8(one) for one in batch]
    need(first.block is None, "torch takes no blocks of int8")
    need(len(first.a) >= LEAST_ROWS, f"torch takes {LEAST_ROWS} rows of int8 or more")
    return [_int8(one) for one in batch]


def _fp8(one: GemmOperands) -> Call:
    b, (a_scale, b_scale) = one.b.t(), _scales(one)

    def call() -> Tensor:
        return torch._scaled_mm(one.a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=one.out.dtype)

    return call


def _scales(one: GemmOperands) -> tuple[Tensor, Tensor]:
    if one.block is None:
        return one.a_scale, one.b_scale.t()
    a_scale = one.a_scale.t().contiguous().t()
    blocks, groups = one.b_scale.shape
    padded = one.b_scale.new_zeros((blocks, -(-groups // 4) * 4))
    padded[:, :groups] = one.b_scale
    return a_scale, padded[:, :groups].t()


def _int8(one: GemmOperands) -> Call:
    b = one.b.t()
    scale = one.b_scale.t()

    def call() -> Tensor:
        return (torch._int_mm(one.a, b) * one.a_scale * scale).to(one.out.dtype)

    return call
