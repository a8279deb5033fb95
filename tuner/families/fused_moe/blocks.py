"""What engines do with quantisation blocks that do not divide a rank's columns.

The checks and their messages are those of both engines: sglang's srt/layers/quantization/fp8.py
(Fp8MoEMethod.create_weights), blockwise_int8.py and moe_wna16.py; vLLM's
validate_fp8_block_shape_moe in model_executor/layers/quantization/utils/fp8_utils.py, and
moe_wna16.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.errors import BadProblem

SMALLEST_GROUP = 32

Block = tuple[int, int]


@dataclass(frozen=True)
class Cut:
    """The experts of one rank, whose weights have quantisation blocks."""

    N: int  # columns of an expert's gate on this rank
    K: int  # hidden size
    ranks: int  # how many share an expert
    block: Block  # (n, k); (0, g) = groups along k
    quantization: str  # the checkpoint's name of its format


def exact_block(cut: Cut) -> Block:
    """The checkpoint's block. Raises BadProblem, in an engine's words, if it does not divide N."""
    n, k = cut.block
    if n and cut.N % n:
        raise BadProblem(
            f"the output_size of gate's and up's weight = {cut.N} is not divisible by weight "
            f"quantization block_n = {n}"
        )
    if (cut.ranks > 1 or not n) and cut.N % k:
        what = "block_k" if n else "group_size"
        raise BadProblem(
            f"the input_size of down's weight = {cut.N} is not divisible by weight quantization "
            f"{what} = {k}"
        )
    return cut.block


def fitted_block(cut: Cut) -> Block:
    """Like `exact_block`, but groups of gptq and awq weights are halved until they divide.

    moe_wna16.py of both engines (create_weights) does so down to 32, and repeats the scales.
    compressed-tensors' classes do not.
    """
    if cut.block[0] or cut.quantization.startswith("compressed-tensors"):
        return exact_block(cut)
    group = cut.block[1]
    while cut.N % group or cut.K % group:
        group //= 2
        if group < SMALLEST_GROUP:
            raise BadProblem(
                f"no group size from {cut.block[1]} halved down to {SMALLEST_GROUP} divides both "
                f"N={cut.N} and K={cut.K}"
            )
    return 0, group
