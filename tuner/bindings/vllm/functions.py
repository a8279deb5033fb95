"""Run vLLM's own functions with stand-ins for the card and its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.devices.table import Device
from tuner.devices.target import CUDA, HIP, Target
from tuner.engines.vllm.package import VLLM
from tuner.kernels.definitions import Definitions
from tuner.kernels.stand_ins import (
    KernelLaunch,
    Namespace,
    Unknown,
    stand_in_torch,
    stand_in_triton,
)

# Variables of servers' environments, with their values if nobody sets them.
_ENVS = {
    "VLLM_BATCH_INVARIANT": False,
    "VLLM_TRITON_USE_TD": None,
    "VLLM_ENABLE_MOE_ALIGN_BLOCK_SIZE_TRITON": False,  # of 0.8 and 0.9
}


@dataclass(frozen=True)
class EngineFunctions:
    """The functions of a file of a copy of vLLM, for a target."""

    engine: VLLM
    source: str  # the file, below the engine's folder
    target: Target
    device_name: str = ""  # as the driver gives it; "" if nothing asks
    known: Mapping[str, object] = field(default_factory=dict)  # further stand-ins, by name
    chosen: Mapping[str, int] = field(default_factory=dict)  # is added to each launch
    _launches: list[KernelLaunch] = field(default_factory=list)
    _opened: list[Definitions] = field(default_factory=list)

    def call(self, name: str, arguments: Mapping[str, object]) -> Any:  # noqa: ANN401
        """Call a function; see `Definitions.call`."""
        return self.definitions.call(name, arguments)

    def launches(self, name: str, arguments: Mapping[str, object]) -> list[KernelLaunch]:
        """Return a function's launches. Raises UnsupportedKernel."""
        self._launches.clear()
        self.call(name, arguments)
        return list(self._launches)

    def has(self, name: str) -> bool:
        return self.definitions.has(name)

    def takes(self, name: str, parameter: str) -> bool:
        """Say whether a function of the release has a parameter of that name."""
        return parameter in self.definitions.parameters(name)

    @property
    def definitions(self) -> Definitions:
        """Return the functions, compiled as they are asked for."""
        if not self._opened:
            engine = self.engine
            origin = f"{engine.name} {engine.version}"
            known = {**_stand_ins(self.target, self.device_name, self._launches), **self.known}
            source = engine.root / self.source
            self._opened.append(
                Definitions(source, engine.root, origin, known, self._launches.append, self.chosen)
            )
        return self._opened[0]


def device_functions(engine: VLLM, source: str, device: Device) -> EngineFunctions:
    """Return the functions of a file for a card, which may ask for its name."""
    return EngineFunctions(engine, source, device.target, engine.card_name(device.name))


def _stand_ins(target: Target, device_name: str, launches: list[KernelLaunch]) -> dict[str, object]:
    triton = stand_in_triton(launches.append)
    platform = {
        "is_cuda": lambda: target.platform == CUDA,
        "is_rocm": lambda: target.platform == HIP,
        "is_xpu": lambda: False,
        "is_device_capability": target.is_sm,
        "has_device_capability": target.is_sm_or_later,
        "get_device_name": lambda *index: device_name,
    }
    return {
        "current_platform": Namespace("current_platform", platform),
        "envs": Namespace("envs", _ENVS),
        "vllm_is_batch_invariant": lambda: False,  # 0.11.1 to 0.30 ask this instead of envs
        "get_device_name_as_file_name": lambda: re.sub(r"[\s/]+", "_", device_name),
        "torch": stand_in_torch(target),
        "triton": triton,
        "tl": triton.language,
        "ops": Unknown("vllm._custom_ops"),
        "logger": Unknown("vllm's logger"),
    }
