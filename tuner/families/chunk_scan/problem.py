"""The scan of a Mamba-2 layer over prompts (SSD) as a problem.

A prompt is cut into chunks. With x of `head_dim` numbers, B and C of `state_size`, and a running
sum `s` of A * dt within a chunk, all by head:

    states[c] = sum over k of exp(s[last] - s[k]) * dt[k] * x[k] (outer) B[k]
    passed[c + 1] = exp(s[last]) * passed[c] + states[c]
    out[m] = exp(s[m]) * passed[c] @ C[m]
             + sum over k <= m of (C[m] . B[k]) * exp(s[m] - s[k]) * dt[k] * x[k] + D * x[m]

An engine runs a kernel for each line, one for `s` and dt, and one for the products C . B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tuner.errors import BadProblem
from tuner.families.scans.scan import ScanKernel
from tuner.problems.dtypes import Dtype, check_state_dtype, parse_dtype
from tuner.problems.points import parse_whole, read_fields

NAME = "chunk_scan"
_DTYPES = (Dtype.BFLOAT16, Dtype.FLOAT16)
_MOST = {"heads": 4096, "head_dim": 1024, "groups": 4096, "state_size": 1024, "chunk_size": 1024}


class SsdKernel(ScanKernel):
    """The kernels of the chain, in the order in which they run."""

    CUMSUM = "chunk_cumsum"
    STATE = "chunk_state"  # and, in sglang, the states at the ends of sequences
    PASSING = "state_passing"
    BMM = "chunk_bmm"
    SCAN = "chunk_scan"


@dataclass(frozen=True)
class ChunkScan:
    """The scan as one rank runs it. Raises BadProblem for impossible sizes."""

    heads: int  # of this rank
    head_dim: int
    groups: int  # of this rank; the heads of a group share B and C
    state_size: int
    chunk_size: int  # tokens
    dtype: Dtype = Dtype.BFLOAT16  # of x, B, C, dt and the output
    state_dtype: str = "float32"  # of the states, one of STATE_DTYPES

    family: ClassVar[str] = NAME
    parts: ClassVar[tuple[SsdKernel, ...]] = tuple(SsdKernel)

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise BadProblem(f"{name} must be from 1 to {most}, not {getattr(self, name)}")
        if self.heads % self.groups:
            raise BadProblem(f"groups={self.groups} do not divide heads={self.heads}")
        if self.chunk_size & (self.chunk_size - 1):
            raise BadProblem(f"chunk_size must be a power of two, not {self.chunk_size}")
        if self.dtype not in _DTYPES:
            wanted = " or ".join(dtype.value for dtype in _DTYPES)
            raise BadProblem(f"dtype must be {wanted}, not {self.dtype.value}")
        check_state_dtype(self.state_dtype)

    def spec(self) -> str:
        """The canonical text of this problem; `parse_problem` reads it back."""
        sizes = [f"{name}={getattr(self, name)}" for name in _MOST]
        types = [f"dtype={self.dtype.value}", f"state_dtype={self.state_dtype}"]
        return f"{NAME}:{','.join([*sizes, *types])}"


def parse_chunk_scan(text: str) -> ChunkScan:
    """Read `chunk_scan:heads=64,head_dim=64,groups=8,state_size=128,chunk_size=128`; dtype is
    bfloat16 and state_dtype float32 where they are left out.

    Raises BadProblem, which names the nearest field.
    """
    fields = read_fields(text, (*_MOST, "dtype", "state_dtype"), required=len(_MOST))
    return ChunkScan(
        **{name: parse_whole(name, fields[name]) for name in _MOST},
        dtype=parse_dtype(fields.get("dtype", Dtype.BFLOAT16.value)),
        state_dtype=fields.get("state_dtype", "float32"),
    )
