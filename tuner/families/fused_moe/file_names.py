"""The names of engines' fused-MoE config files, as far as the engines agree.

E=256,N=64,device_name=NVIDIA_L40S[,dtype=..][,block_shape=[n, k]][,per_channel_quant=True]
[_down].json
"""

from __future__ import annotations

import re

from tuner.errors import MalformedConfigFile
from tuner.families.fused_moe.engine import MoeFileKey
from tuner.families.fused_moe.problem import Gemm

# It also finds a name inside a line. Numbers have a limited length, so that none is absurd.
NAME = re.compile(
    r"E=(?P<E>\d{1,7}),N=(?P<N>\d{1,7}),device_name=(?P<device>[^,/\\]*?)"
    r"(?:,dtype=(?P<dtype>\w+?))?"
    r"(?:,block_shape=\[(?P<n>\d{1,6}),\s*(?P<k>\d{1,6})\])?"
    r"(?P<per_channel>,per_channel_quant=True)?"
    r"(?P<down>_down)?\.json",
    re.ASCII,
)


def format_file_name(key: MoeFileKey, comma: str = ", ") -> str:
    """The file name for a key; `parse_file_name` reads it back. `comma`: in a block's shape."""
    name = f"E={key.E},N={key.N},device_name={key.device}"
    if key.dtype:
        name += f",dtype={key.dtype}"
    if key.block_shape:
        name += f",block_shape=[{comma.join(map(str, key.block_shape))}]"
    if key.per_channel_quant:
        name += ",per_channel_quant=True"
    return f"{name}{'_down' if key.gemm is Gemm.DOWN else ''}.json"


def parse_file_name(name: str, comma: str = ", ", *, packed: bool = True) -> MoeFileKey:
    """Read a file's name. `packed`: see `MoeFileKey`.

    Raises MalformedConfigFile for a name that no engine looks for.
    """
    match = NAME.fullmatch(name)
    if match:
        key = MoeFileKey(
            E=int(match["E"]),
            N=int(match["N"]),
            device=match["device"],
            dtype=match["dtype"],
            block_shape=(int(match["n"]), int(match["k"])) if match["n"] else None,
            per_channel_quant=match["per_channel"] is not None,
            gemm=Gemm.DOWN if match["down"] else Gemm.UP,
            packed=packed,
        )
        if format_file_name(key, comma) == name:  # refuses leading zeros and another comma
            return key
    raise MalformedConfigFile(
        f"{name!r} is not a config file's name, like "
        f"'E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128{comma}128].json'"
    )
