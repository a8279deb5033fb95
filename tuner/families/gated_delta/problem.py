"""The scan of a gated delta net's layer over prompts as a problem.

A prompt is cut into chunks. With q and k of length 1 and `key_dim` numbers, v of `value_dim`, a
rate beta, and `s`, the running sum of the gates' logarithms within a chunk, all by value head:

    T = inverse of 1 + A, with A[i, j] = beta[i] * (k[i] . k[j]) * exp(s[i] - s[j]) for j < i
    w = T @ (beta * exp(s) * k),  u = T @ (beta * v)
    new = u - w @ state[c]
    state[c + 1] = exp(s[last]) * state[c]
                   + sum over i of exp(s[last] - s[i]) * k[i] (outer) new[i]
    out[i] = exp(s[i]) * q[i] @ state[c]
             + sum over j <= i of (q[i] . k[j]) * exp(s[i] - s[j]) * new[j], over sqrt(key_dim)

An engine runs a kernel for w and u, one for the states, one for the output, and one for s before
them. The chain `fused` (sglang) gives q and k their length, and finds T in one kernel. The chain
`split` (vLLM) is given q and k of length 1, and finds A and its inverse in two kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tuner.errors import BadProblem
from tuner.families.scans.scan import ScanKernel
from tuner.problems.dtypes import Dtype, check_state_dtype, parse_dtype
from tuner.problems.points import parse_whole, read_fields

NAME = "gated_delta"
_DTYPES = (Dtype.BFLOAT16, Dtype.FLOAT16)
_MOST = {"key_heads": 4096, "value_heads": 4096, "key_dim": 256, "value_dim": 1024}


class DeltaKernel(ScanKernel):
    """The kernels of the chain, in the order in which they run."""

    NORM = "delta_norm"  # of q and of k
    GATES = "delta_gates"  # s
    SOLVE = "delta_solve"  # T
    PRODUCTS = "delta_products"  # A
    INVERSE = "delta_inverse"  # T of A
    WEIGHTS = "delta_weights"  # w and u
    STATES = "delta_states"  # new and the states
    OUT = "delta_out"


_FIRST = {
    "fused": (DeltaKernel.NORM, DeltaKernel.GATES, DeltaKernel.SOLVE),
    "split": (DeltaKernel.GATES, DeltaKernel.PRODUCTS, DeltaKernel.INVERSE),
}
_REST = DeltaKernel.WEIGHTS, DeltaKernel.STATES, DeltaKernel.OUT
CHAINS = {chain: (*first, *_REST) for chain, first in _FIRST.items()}
_FUSED = "fused"  # where a problem names no chain


@dataclass(frozen=True)
class GatedDelta:
    """The scan as one rank runs it. Raises BadProblem for impossible sizes."""

    key_heads: int  # of this rank; the value heads of one share q and k
    value_heads: int  # of this rank
    key_dim: int
    value_dim: int
    dtype: Dtype = Dtype.BFLOAT16  # of q, k, v and the output
    state_dtype: str = "float32"  # of the states, one of STATE_DTYPES
    chain: str = _FUSED  # one of CHAINS

    family: ClassVar[str] = NAME
    chunk_size: ClassVar[int] = 64  # tokens, in every engine

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise BadProblem(f"{name} must be from 1 to {most}, not {getattr(self, name)}")
        if self.value_heads % self.key_heads:
            text = f"key_heads={self.key_heads} do not divide value_heads={self.value_heads}"
            raise BadProblem(text)
        if self.dtype not in _DTYPES:
            wanted = " or ".join(dtype.value for dtype in _DTYPES)
            raise BadProblem(f"dtype must be {wanted}, not {self.dtype.value}")
        check_state_dtype(self.state_dtype)
        if self.chain not in CHAINS:
            wanted = " or ".join(CHAINS)
            raise BadProblem(f"chain must be {wanted}, not {self.chain!r}")

    @property
    def parts(self) -> tuple[DeltaKernel, ...]:
        """The kernels of its chain, in the order in which they run."""
        return CHAINS[self.chain]

    def spec(self) -> str:
        """The canonical text of this problem; `parse_problem` reads it back."""
        sizes = [f"{name}={getattr(self, name)}" for name in _MOST]
        types = [f"dtype={self.dtype.value}", f"state_dtype={self.state_dtype}"]
        chain = [f"chain={self.chain}"] if self.chain != _FUSED else []
        return f"{NAME}:{','.join([*sizes, *types, *chain])}"


def parse_gated_delta(text: str) -> GatedDelta:
    """Read `gated_delta:key_heads=16,value_heads=32,key_dim=128,value_dim=128`; dtype is bfloat16,
    state_dtype float32 and chain fused where they are left out.

    Raises BadProblem, which names the nearest field.
    """
    fields = read_fields(text, (*_MOST, "dtype", "state_dtype", "chain"), required=len(_MOST))
    return GatedDelta(
        **{name: parse_whole(name, fields[name]) for name in _MOST},
        dtype=parse_dtype(fields.get("dtype", Dtype.BFLOAT16.value)),
        state_dtype=fields.get("state_dtype", "float32"),
        chain=fields.get("chain", _FUSED),
    )
