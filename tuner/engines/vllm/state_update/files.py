"""vLLM's config files for the Mamba-2 state update on disk.

headdim=64,dstate=128,device_name=NVIDIA_H200,cache_dtype=float32.json
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import EntryFields
from tuner.engines.vllm.functions import EngineFunctions, device_functions
from tuner.engines.vllm.package import VLLM
from tuner.engines.vllm.state_update.binding import (
    ENTRY,
    SOURCE,
    VLLMStateKernels,
    lift_state_update,
)
from tuner.errors import MalformedConfigFile, UnsupportedKernel
from tuner.families.state_update.engine import StateEngine, StateUpdateFileKey
from tuner.families.state_update.problem import StateUpdate
from tuner.problems.points import Config

FIELDS = EntryFields(ENTRY, ENTRY, aside=frozenset({"triton_version"}))
_LOADER = "get_ssm_configs"
_CONFIGS = "configs/selective_state_update"


@dataclass(frozen=True)
class VLLMStateUpdate(StateEngine):
    """The state update of one copy of vLLM.

    A file serves all models with the same head_dim, state size and width of states: its keys are
    sequences times the heads of a rank. All Triton versions share a file.
    """

    engine: VLLM

    @cached_property
    def reads_files(self) -> bool:
        """Whether this version has a loader. 0.24.0 is the first examined one with it."""
        source = self.engine.root / SOURCE
        return source.is_file() and f"def {_LOADER}(" in source.read_text(encoding="utf-8")

    def require_files(self) -> None:
        """Raises UnsupportedKernel for a version that reads no files."""
        if not self.reads_files:
            raise UnsupportedKernel(
                f"{self.name} {self.version} reads no files for the Mamba state update; vllm "
                "0.24.0 and 0.33.0 do"
            )

    @property
    def fields(self) -> EntryFields:
        return FIELDS

    @property
    def package_root(self) -> Path:
        return self.configs

    @property
    def configs(self) -> Path:
        return (self.engine.root / SOURCE).parent / _CONFIGS

    def file_name(self, problem: StateUpdate, device: Device) -> str:
        functions = self._functions(device)
        arguments = {
            "headdim": problem.head_dim,
            "dstate": problem.state_size,
            "cache_dtype": functions.call(
                "_canonical_cache_dtype", {"cache_dtype": problem.cache_dtype}
            ),
            "device_name": functions.call("get_ssm_device_name", {}),
        }
        name: str = functions.call("get_ssm_config_file_name", arguments)
        return name

    def read_file_name(self, name: str) -> StateUpdateFileKey:
        return parse_file_name(name)

    def folders(self, root: Path) -> Iterable[Path]:
        return (root, self.configs)

    def file_key(self, problem: StateUpdate, batch_size: int) -> int:
        return batch_size * problem.heads

    def shipped_sizes(self, problem: StateUpdate, device: Device) -> Iterable[int]:
        for key in self.entries(problem, device):
            below = max(1, key // problem.heads)
            yield from (below, below + (below * problem.heads < key))

    def effective(self, problem: StateUpdate, config: Config, target: Target) -> Config:
        return Config({name: config[name] for name in ENTRY})

    def default_config(self, problem: StateUpdate, device: Device, batch_size: int) -> Config:
        # MambaMixer2: is_blackwell = current_platform.is_device_capability_family(100)
        arguments = {
            "dstate": problem.state_size,
            "is_blackwell": device.target.is_sm_family(100),
        }
        found = self._functions(device).call("_get_default_ssm_launch_config", arguments)
        return Config(dict(zip(ENTRY, found, strict=True)))

    def _functions(self, device: Device) -> EngineFunctions:
        self.require_files()
        return device_functions(self.engine, SOURCE, device)

    def lift(self, backend: str = CUDA) -> VLLMStateKernels:
        return lift_state_update(self.engine, backend)


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
