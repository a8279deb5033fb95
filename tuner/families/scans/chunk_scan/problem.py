"""Describe the scan of a Mamba-2 layer over prompts (SSD) as a problem.

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
from tuner.families.scans.problem import ScanSizes
from tuner.families.scans.scan import ScanKernel
from tuner.problems.dtypes import Dtype

NAME = "chunk_scan"


class SsdKernel(ScanKernel):
    """The kernels of the chain, in the order in which they run."""

    CUMSUM = "chunk_cumsum"
    STATE = "chunk_state"  # and, in sglang, the states at the ends of sequences
    PASSING = "state_passing"
    BMM = "chunk_bmm"
    SCAN = "chunk_scan"


@dataclass(frozen=True)
class ChunkScan(ScanSizes):
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
    most: ClassVar = {
        **{"heads": 4096, "head_dim": 1024, "groups": 4096, "state_size": 1024},
        "chunk_size": 1024,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.groups:
            raise BadProblem(f"groups={self.groups} do not divide heads={self.heads}")
        if self.chunk_size & (self.chunk_size - 1):
            raise BadProblem(f"chunk_size must be a power of two, not {self.chunk_size}")
