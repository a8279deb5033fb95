"""Describe a quantised dense GEMM: C (M, N) = A (M, K) x B (N, K) transposed, with scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tuner.errors import BadProblem
from tuner.problems.dtypes import Dtype, parse_dtype
from tuner.problems.points import Part, Problem, parse_block_shape, parse_whole, read_fields

BLOCK, CHANNEL = "block_gemm", "channel_gemm"
DENSE_GEMMS = (BLOCK, CHANNEL)
_DTYPES = (Dtype.FP8_W8A8, Dtype.INT8_W8A8)
_OUTPUTS = (Dtype.BFLOAT16, Dtype.FLOAT16)
# The M of sglang's tuning script, and so the keys of the files that it ships.
BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)


class DensePart(Part):
    """The only launch of a dense GEMM. A split of K adds a second kernel, which belongs to it."""

    DENSE = "dense"


@dataclass(frozen=True)
class DenseGemm:
    """A linear layer as one rank runs it. Raises BadProblem for values that no engine kernel
    accepts.

    `block_gemm`: A has a scale for each row and block of K, and B a scale for each block (n, k).
    `channel_gemm`: A has a scale for each row, and B a scale for each column of C.
    """

    N: int  # columns of C on this rank
    K: int  # the reduced length on this rank
    dtype: Dtype
    block: tuple[int, int] | None = None  # quantisation block (n, k) of B; None: per channel
    out: Dtype = Dtype.BFLOAT16  # of C

    parts: ClassVar[tuple[DensePart, ...]] = (DensePart.DENSE,)

    def __post_init__(self) -> None:
        for name in ("N", "K"):
            if getattr(self, name) < 1:
                raise BadProblem(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.dtype not in _DTYPES:
            wanted = " or ".join(dtype.value for dtype in _DTYPES)
            raise BadProblem(f"a quantised dense GEMM is {wanted}, not {self.dtype.value}")
        if self.out not in _OUTPUTS:
            raise BadProblem(f"out must be bfloat16 or float16, not {self.out.value}")
        if self.block is not None and min(self.block) < 1:
            n, k = self.block
            raise BadProblem(f"block {n}x{k} is not a block: use 128x128 or 32x32")

    @property
    def family(self) -> str:
        return BLOCK if self.block else CHANNEL

    def spec(self) -> str:
        """Return the canonical text of this problem; `parse_problem` reads it back."""
        parts = [f"N={self.N}", f"K={self.K}", f"dtype={self.dtype.value}"]
        if self.block:
            parts.append(f"block={self.block[0]}x{self.block[1]}")
        if self.out is not Dtype.BFLOAT16:
            parts.append(f"out={self.out.value}")
        return f"{self.family}:{','.join(parts)}"


def same_weights(one: Problem, other: Problem) -> bool:
    """Say whether two problems differ at most in the type of C, which the names of files leave
    out.
    """
    assert isinstance(one, DenseGemm)
    assert isinstance(other, DenseGemm)
    return replace(one, out=Dtype.BFLOAT16) == replace(other, out=Dtype.BFLOAT16)


def parse_dense_gemm(text: str) -> DenseGemm:
    """Read `block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128`, or `channel_gemm:..` without
    a block. `out=float16` may follow; the default is bfloat16.

    Raises BadProblem, which names the nearest field.
    """
    name = text.partition(":")[0]
    block = ("block",) if name == BLOCK else ()
    fields = read_fields(text, ("N", "K", "dtype", *block, "out"), required=3 + len(block))
    return DenseGemm(
        N=parse_whole("N", fields["N"]),
        K=parse_whole("K", fields["K"]),
        dtype=parse_dtype(fields["dtype"]),
        block=parse_block_shape(fields["block"]) if block else None,
        out=parse_dtype(fields.get("out", Dtype.BFLOAT16.value)),
    )
