"""The scan of Kimi delta attention (KDA) over prompts as a problem.

It is the scan of a gated delta net with as many key heads as value heads and a gate for each number
of a key, not for each head. With q and k of length 1 and `head_dim` numbers, v as long, a rate
beta, and `s`, the running sum of the gates' logarithms within a chunk, all by head:

    A[i, j] = beta[i] * sum over n of k[i, n] * k[j, n] * exp(s[i, n] - s[j, n]), for j < i
    P[i, j] = the same of q[i] and k[j] without beta, over sqrt(head_dim), for j <= i
    T = inverse of 1 + A,  w = T @ (beta * exp(s) * k),  u = T @ (beta * v)
    new = u - w @ state[c]
    state[c + 1] = exp(s[last]) * state[c]
                   + sum over i of (exp(s[last] - s[i]) * k[i]) (outer) new[i]
    out[i] = (exp(s[i]) * q[i]) @ state[c] / sqrt(head_dim) + sum over j <= i of P[i, j] * new[j]

An engine runs a kernel for s and beta, one for the blocks of 16 tokens on the diagonals of A and P,
one for the rest of P and T, one for w and u, one for the states, and one for the output. q and k
get their length before, in a kernel that is not tuned here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tuner.errors import BadProblem
from tuner.families.scans.scan import ScanKernel
from tuner.problems.dtypes import Dtype, check_state_dtype, parse_dtype
from tuner.problems.points import parse_whole, read_fields

NAME = "kda"
_DTYPES = (Dtype.BFLOAT16, Dtype.FLOAT16)
_MOST = {"heads": 4096, "head_dim": 256}


class KdaKernel(ScanKernel):
    """The kernels of the chain, in the order in which they run."""

    GATES = "kda_gates"  # s and beta
    DIAGONAL = "kda_diagonal"  # A and P of 16 tokens each
    SOLVE = "kda_solve"  # the rest of P, and T
    WEIGHTS = "kda_weights"  # w and u
    STATES = "kda_states"  # new and the states
    OUT = "kda_out"


@dataclass(frozen=True)
class Kda:
    """The scan as one rank runs it. Raises BadProblem for impossible sizes."""

    heads: int  # of this rank
    head_dim: int
    dtype: Dtype = Dtype.BFLOAT16  # of q, k, v and the output
    state_dtype: str = "float32"  # of the states, one of STATE_DTYPES

    family: ClassVar[str] = NAME
    parts: ClassVar[tuple[KdaKernel, ...]] = tuple(KdaKernel)
    chunk_size: ClassVar[int] = 64  # tokens, in every engine

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise BadProblem(f"{name} must be from 1 to {most}, not {getattr(self, name)}")
        if self.dtype not in _DTYPES:
            wanted = " or ".join(dtype.value for dtype in _DTYPES)
            raise BadProblem(f"dtype must be {wanted}, not {self.dtype.value}")
        check_state_dtype(self.state_dtype)

    def spec(self) -> str:
        """The canonical text of this problem; `parse_problem` reads it back."""
        sizes = [f"{name}={getattr(self, name)}" for name in _MOST]
        types = [f"dtype={self.dtype.value}", f"state_dtype={self.state_dtype}"]
        return f"{NAME}:{','.join([*sizes, *types])}"


def parse_kda(text: str) -> Kda:
    """Read `kda:heads=32,head_dim=128`; dtype is bfloat16 and state_dtype float32 where they are
    left out.

    Raises BadProblem, which names the nearest field.
    """
    fields = read_fields(text, (*_MOST, "dtype", "state_dtype"), required=len(_MOST))
    return Kda(
        **{name: parse_whole(name, fields[name]) for name in _MOST},
        dtype=parse_dtype(fields.get("dtype", Dtype.BFLOAT16.value)),
        state_dtype=fields.get("state_dtype", "float32"),
    )
