"""What sglang's names of fused-MoE config files say of a problem."""

from __future__ import annotations

from tuner.families.fused_moe.engine import MoeFileKey
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype


def engine_dtype(dtype: Dtype) -> str | None:
    """The dtype in the engine's file names; None for 16-bit weights."""
    return None if dtype in (Dtype.BFLOAT16, Dtype.FLOAT16) else dtype.value


def weight_columns(problem: FusedMoe) -> tuple[int, int]:
    """(N, K) as the engine reads them from the weights' shapes: int4 packs two elements a byte."""
    packed = 2 if problem.dtype is Dtype.INT4_W4A16 else 1
    return problem.N // packed, problem.K // packed


def file_key(problem: FusedMoe, device_name: str, gemm: Gemm, *, per_channel: bool) -> MoeFileKey:
    """The key that an engine looks for. `per_channel`: this version's names have the flag."""
    # The engine leaves groups along k, (0, g), out of the name.
    block = problem.block_shape if problem.block_shape and all(problem.block_shape) else None
    return MoeFileKey(
        E=problem.E,
        N=weight_columns(problem)[0],
        device=device_name,
        dtype=engine_dtype(problem.dtype),
        block_shape=block,
        per_channel_quant=per_channel and problem.per_channel_quant,
        gemm=gemm,
    )
