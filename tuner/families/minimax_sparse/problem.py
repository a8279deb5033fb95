"""MiniMax-M3's sparse attention over prompts as a problem.

Each query reads the keys of `topk` blocks only, which an index with a single key head chooses for
each head h of keys. With blocks of `block` keys, and queries i of a prompt that begins here:

    score[h, i, b] = max over keys j <= i of block b of log2(e) * index_q[i, h] . index_k[j]
                     / sqrt(index_dim)
    chosen[h, i] = i's own block, and the topk - 1 before it with the highest scores
    out[i, g] = attention of q[i, g] over the keys j <= i of chosen[h, i], where h serves g

An engine runs a kernel for the scores, one that chooses, and one for the attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tuner.errors import BadProblem
from tuner.families.scans.scan import ScanKernel
from tuner.problems.dtypes import Dtype, parse_dtype
from tuner.problems.points import parse_whole, read_fields

NAME = "minimax_sparse"
_DTYPES = (Dtype.BFLOAT16, Dtype.FLOAT16)
_MOST = {
    **{"heads": 4096, "kv_heads": 4096, "head_dim": 256, "index_dim": 256},
    **{"block": 128, "topk": 256},
}
_BLOCKS = (16, 32, 64, 128)  # what sglang's launchers take
_MOST_GROUP = 128  # query heads of a key head, likewise


class SparseKernel(ScanKernel):
    """The kernels of the chain, in the order in which they run."""

    SCORES = "minimax_scores"
    CHOICE = "minimax_choice"
    ATTENTION = "minimax_attention"


@dataclass(frozen=True)
class MinimaxSparse:
    """The attention as one rank runs it. Raises BadProblem for impossible sizes."""

    heads: int  # of queries, of this rank
    kv_heads: int  # and as many of the index's queries
    head_dim: int
    index_dim: int
    block: int  # keys
    topk: int  # blocks
    dtype: Dtype = Dtype.BFLOAT16  # of all queries, keys and values

    family: ClassVar[str] = NAME
    parts: ClassVar[tuple[SparseKernel, ...]] = tuple(SparseKernel)

    @property
    def chunk_size(self) -> int:
        """Keys of a block, which are the chunks of this family."""
        return self.block

    @property
    def group(self) -> int:
        """Query heads that share a head of keys."""
        return self.heads // self.kv_heads

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise BadProblem(f"{name} must be from 1 to {most}, not {getattr(self, name)}")
        if self.block not in _BLOCKS:
            raise BadProblem(f"block must be one of {_BLOCKS}, not {self.block}")
        if self.heads % self.kv_heads or self.group > _MOST_GROUP:
            raise BadProblem(
                f"heads must be 1 to {_MOST_GROUP} times kv_heads={self.kv_heads}, not {self.heads}"
            )
        if self.dtype not in _DTYPES:
            wanted = " or ".join(dtype.value for dtype in _DTYPES)
            raise BadProblem(f"dtype must be {wanted}, not {self.dtype.value}")

    def spec(self) -> str:
        """The canonical text of this problem; `parse_problem` reads it back."""
        sizes = [f"{name}={getattr(self, name)}" for name in _MOST]
        return f"{NAME}:{','.join([*sizes, f'dtype={self.dtype.value}'])}"


def parse_minimax_sparse(text: str) -> MinimaxSparse:
    """Read `minimax_sparse:heads=16,kv_heads=1,head_dim=128,index_dim=128,block=128,topk=16`; dtype
    is bfloat16 where it is left out.

    Raises BadProblem, which names the nearest field.
    """
    fields = read_fields(text, (*_MOST, "dtype"), required=len(_MOST))
    return MinimaxSparse(
        **{name: parse_whole(name, fields[name]) for name in _MOST},
        dtype=parse_dtype(fields.get("dtype", Dtype.BFLOAT16.value)),
    )
