"""The names of sglang's config files for dense GEMMs.

N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json
N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json
"""

from __future__ import annotations

import re

from tuner.errors import MalformedConfigFile
from tuner.families.dense_gemm.engine import GemmFileKey

# It also finds a name inside a line. Numbers have a limited length, so that none is absurd. The
# line may have lost the space in `[128, 128]`.
NAME = re.compile(
    r"N=(?P<N>\d{1,7}),K=(?P<K>\d{1,7}),device_name=(?P<device>[^,/\\]*?),"
    r"dtype=(?:(?P<dtype>\w+?),block_shape=\[(?P<n>\d{1,6}),\s*(?P<k>\d{1,6})\]"
    r"|(?P<channel>\w+?)_channelwise)\.json",
    re.ASCII,
)


def format_file_name(key: GemmFileKey) -> str:
    """The file name for a key; `parse_file_name` reads it back."""
    name = f"N={key.N},K={key.K},device_name={key.device},dtype={key.dtype}"
    blocks = f",block_shape={list(key.block)}" if key.block else "_channelwise"
    return f"{name}{blocks}.json"


def find_file_name(text: str) -> GemmFileKey | None:
    """The facts of the first file name in a line or path; None if there is none."""
    match = NAME.search(text)
    return _key(match) if match else None


def parse_file_name(name: str) -> GemmFileKey:
    """Read a file's name. Raises MalformedConfigFile for a name that no engine looks for."""
    match = NAME.fullmatch(name)
    key = _key(match) if match else None
    if key is None or format_file_name(key) != name:  # leading zeros, a missing space
        raise MalformedConfigFile(
            f"{name!r} is not the name of a GEMM's config file, like "
            "'N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json'"
        )
    return key


def _key(match: re.Match[str]) -> GemmFileKey:
    return GemmFileKey(
        N=int(match["N"]),
        K=int(match["K"]),
        device=match["device"],
        dtype=match["dtype"] or match["channel"],
        block=(int(match["n"]), int(match["k"])) if match["n"] else None,
    )
