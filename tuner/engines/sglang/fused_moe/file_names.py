"""The names of sglang's fused-MoE config files.

E=256,N=64,device_name=NVIDIA_L40S[,dtype=..][,block_shape=[n, k]][,per_channel_quant=True]
[_down].json
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.errors import MalformedConfigFile
from tuner.families.fused_moe.problem import Dtype, FusedMoe
from tuner.problems.points import Gemm

_NAME = re.compile(
    r"E=(?P<E>\d+),N=(?P<N>\d+),device_name=(?P<device>[^,/]*?)"
    r"(?:,dtype=(?P<dtype>\w+?))?"
    r"(?:,block_shape=\[(?P<n>\d+), (?P<k>\d+)\])?"
    r"(?P<channel>,per_channel_quant=True)?"
    r"(?P<down>_down)?\.json",
    re.ASCII,
)


@dataclass(frozen=True)
class FileKey:
    """What a file's name says; `str()` gives the name back."""

    E: int
    N: int  # columns of the down weight, which int4_w4a16 packs two by two
    device: str  # as the driver names it, "_" for " "
    dtype: str | None = None  # None: 16-bit weights
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    gemm: Gemm = Gemm.UP

    def __str__(self) -> str:
        name = f"E={self.E},N={self.N},device_name={self.device}"
        if self.dtype:
            name += f",dtype={self.dtype}"
        if self.block_shape:
            name += f",block_shape={list(self.block_shape)}"
        if self.per_channel_quant:
            name += ",per_channel_quant=True"
        return f"{name}{'_down' if self.gemm is Gemm.DOWN else ''}.json"

    @property
    def intermediate_size(self) -> int:
        """The problem's N, in elements."""
        return self.N * 2 if self.dtype == Dtype.INT4_W4A16.value else self.N


def parse_file_name(name: str) -> FileKey:
    """Read a file's name. Raises MalformedConfigFile for one that no engine would ask for."""
    match = _NAME.fullmatch(name)
    if match:
        key = FileKey(
            E=int(match["E"]),
            N=int(match["N"]),
            device=match["device"],
            dtype=match["dtype"],
            block_shape=(int(match["n"]), int(match["k"])) if match["n"] else None,
            per_channel_quant=match["channel"] is not None,
            gemm=Gemm.DOWN if match["down"] else Gemm.UP,
        )
        if str(key) == name:  # not so for leading zeros
            return key
    raise MalformedConfigFile(
        f"{name!r} is not a config file's name, like "
        "'E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json'"
    )


def engine_dtype(dtype: Dtype) -> str | None:
    """The engine's own word for a problem's dtype; it has none for 16-bit weights."""
    return None if dtype in (Dtype.BFLOAT16, Dtype.FLOAT16) else dtype.value


def weight_columns(problem: FusedMoe) -> tuple[int, int]:
    """(N, K) as the engine reads them off its weights' shapes: int4 packs two elements a byte."""
    packed = 2 if problem.dtype is Dtype.INT4_W4A16 else 1
    return problem.N // packed, problem.K // packed


def file_key(problem: FusedMoe, device_name: str, gemm: Gemm, *, per_channel: bool) -> FileKey:
    """The key that an engine asks for; `per_channel`: whether this version's names say so."""
    # Groups along k alone, (0, g), are left out of the name by the engine.
    block = problem.block_shape if problem.block_shape and all(problem.block_shape) else None
    return FileKey(
        E=problem.E,
        N=weight_columns(problem)[0],
        device=device_name,
        dtype=engine_dtype(problem.dtype),
        block_shape=block,
        per_channel_quant=per_channel and problem.per_channel_quant,
        gemm=gemm,
    )
