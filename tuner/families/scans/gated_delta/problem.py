"""Describe the scan of a gated delta net's layer over prompts as a problem.

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
from tuner.families.scans.problem import ScanSizes
from tuner.families.scans.scan import ScanKernel
from tuner.problems.dtypes import Dtype

NAME = "gated_delta"


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


_REST = DeltaKernel.WEIGHTS, DeltaKernel.STATES, DeltaKernel.OUT
CHAINS = {
    "fused": (DeltaKernel.NORM, DeltaKernel.GATES, DeltaKernel.SOLVE, *_REST),
    "split": (DeltaKernel.GATES, DeltaKernel.PRODUCTS, DeltaKernel.INVERSE, *_REST),
}
_FUSED = "fused"  # the chain of a problem that names none


@dataclass(frozen=True)
class GatedDelta(ScanSizes):
    """The scan as one rank runs it. Raises BadProblem for impossible sizes."""

    key_heads: int  # of this rank; the value heads of a key head share q and k
    value_heads: int  # of this rank
    key_dim: int
    value_dim: int
    dtype: Dtype = Dtype.BFLOAT16  # of q, k, v and the output
    state_dtype: str = "float32"  # of the states, one of STATE_DTYPES
    chain: str = _FUSED  # one of CHAINS

    family: ClassVar[str] = NAME
    chunk_size: ClassVar[int] = 64  # tokens, in every engine

    most: ClassVar = {"key_heads": 4096, "value_heads": 4096, "key_dim": 256, "value_dim": 1024}
    words: ClassVar = {"chain": _FUSED}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_heads % self.key_heads:
            text = f"key_heads={self.key_heads} do not divide value_heads={self.value_heads}"
            raise BadProblem(text)
        if self.chain not in CHAINS:
            wanted = " or ".join(CHAINS)
            raise BadProblem(f"chain must be {wanted}, not {self.chain!r}")

    @property
    def parts(self) -> tuple[DeltaKernel, ...]:
        """Return the kernels of the problem's chain, in the order in which they run."""
        return CHAINS[self.chain]
