"""Run DeepGEMM: `deep_gemm`, which the packages deep-gemm and sgl-deep-gemm have.

It compiles a kernel at the first call that needs it, with nvcc.
"""

from __future__ import annotations

from collections.abc import Sequence

import deep_gemm
import torch
from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor

from tuner.backends.operands import Call, GemmOperands, need, need_target

BLOCK = (128, 128)


def gemm(batch: Sequence[GemmOperands]) -> list[Call]:
    first = batch[0]
    need(first.block == BLOCK, "DeepGEMM takes blocks of 128x128 alone")
    need(first.fp8, "DeepGEMM takes fp8 alone")
    need(first.out.dtype is torch.bfloat16, "DeepGEMM writes bfloat16 alone")
    n, k = first.b.shape
    need(n % 64 == 0 and k % 128 == 0, "engines run DeepGEMM where N divides by 64 and K by 128")
    need_target("DeepGEMM", "sm_90", "sm_100", "sm_103")
    return [_call(one) for one in batch]


def _call(one: GemmOperands) -> Call:
    # Engines quantise A into this layout.
    left = one.a, get_mn_major_tma_aligned_tensor(one.a_scale)
    right = one.b, one.b_scale

    def call() -> torch.Tensor:
        deep_gemm.fp8_gemm_nt(left, right, one.out)
        return one.out

    return call
