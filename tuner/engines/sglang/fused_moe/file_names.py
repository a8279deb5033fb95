"""The names of sglang's fused-MoE config files.

E=256,N=64,device_name=NVIDIA_L40S[,dtype=..][,block_shape=[n, k]][,per_channel_quant=True]
[_down].json
"""

from __future__ import annotations

import re

from tuner.errors import MalformedConfigFile
from tuner.families.fused_moe.engine import FileKey
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype

# It also finds a name inside a line. Numbers have a limited length, so that none is absurd.
NAME = re.compile(
    r"E=(?P<E>\d{1,7}),N=(?P<N>\d{1,7}),device_name=(?P<device>[^,/\\]*?)"
    r"(?:,dtype=(?P<dtype>\w+?))?"
    r"(?:,block_shape=\[(?P<n>\d{1,6}),\s*(?P<k>\d{1,6})\])?"
    r"(?P<per_channel>,per_channel_quant=True)?"
    r"(?P<down>_down)?\.json",
    re.ASCII,
)


def format_file_name(key: FileKey) -> str:
    """The file name for a key; `parse_file_name` reads it back."""
    name = f"E={key.E},N={key.N},device_name={key.device}"
    if key.dtype:
        name += f",dtype={key.dtype}"
    if key.block_shape:
        name += f",block_shape={list(key.block_shape)}"
    if key.per_channel_quant:
        name += ",per_channel_quant=True"
    return f"{name}{'_down' if key.gemm is Gemm.DOWN else ''}.json"


def parse_file_name(name: str) -> FileKey:
    """Read a file's name. Raises MalformedConfigFile for a name that no engine looks for."""
    match = NAME.fullmatch(name)
    if match:
        key = FileKey(
            E=int(match["E"]),
            N=int(match["N"]),
            device=match["device"],
            dtype=match["dtype"],
            block_shape=(int(match["n"]), int(match["k"])) if match["n"] else None,
            per_channel_quant=match["per_channel"] is not None,
            gemm=Gemm.DOWN if match["down"] else Gemm.UP,
        )
        if format_file_name(key) == name:  # refuses leading zeros and a missing blank
            return key
    raise MalformedConfigFile(
        f"{name!r} is not a config file's name, like "
        "'E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json'"
    )


def engine_dtype(dtype: Dtype) -> str | None:
    """The dtype in the engine's file names; None for 16-bit weights."""
    return None if dtype in (Dtype.BFLOAT16, Dtype.FLOAT16) else dtype.value


def weight_columns(problem: FusedMoe) -> tuple[int, int]:
    """(N, K) as the engine reads them from the weights' shapes: int4 packs two elements a byte."""
    packed = 2 if problem.dtype is Dtype.INT4_W4A16 else 1
    return problem.N // packed, problem.K // packed


def file_key(problem: FusedMoe, device_name: str, gemm: Gemm, *, per_channel: bool) -> FileKey:
    """The key that an engine looks for. `per_channel`: this version's names have the flag."""
    # The engine leaves groups along k, (0, g), out of the name.
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
