"""The names of vLLM's config files for the Mamba-2 state update.

headdim=64,dstate=128,device_name=NVIDIA_H200,cache_dtype=float32.json
"""

from __future__ import annotations

import re

from tuner.errors import MalformedConfigFile
from tuner.families.state_update.engine import StateUpdateFileKey

# It also finds a name inside a line. Numbers have a limited length, so that none is absurd.
NAME = re.compile(
    r"headdim=(?P<head_dim>\d{1,5}),dstate=(?P<state_size>\d{1,5}),"
    r"device_name=(?P<device>[^,/\\]*?),cache_dtype=(?P<cache>float16|float32)\.json",
    re.ASCII,
)


def find_file_name(text: str) -> StateUpdateFileKey | None:
    """The facts of the first file name in a line or path; None if there is none."""
    match = NAME.search(text)
    return _key(match) if match else None


def parse_file_name(name: str) -> StateUpdateFileKey:
    """Read a file's name. Raises MalformedConfigFile for a name that vLLM never looks for."""
    match = NAME.fullmatch(name)
    key = _key(match) if match else None
    if key is None or name != (
        f"headdim={key.head_dim},dstate={key.state_size},device_name={key.device},"
        f"cache_dtype={key.cache_dtype}.json"
    ):
        raise MalformedConfigFile(
            f"{name!r} is not the name of a state update's config file, like "
            "'headdim=64,dstate=128,device_name=NVIDIA_L40S,cache_dtype=float32.json'"
        )
    return key


def _key(match: re.Match[str]) -> StateUpdateFileKey:
    sizes = int(match["head_dim"]), int(match["state_size"])
    return StateUpdateFileKey(*sizes, match["device"], match["cache"])
