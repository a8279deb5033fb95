"""Open a copy of vLLM on disk, for all families of kernels."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.devices.table import find_device
from tuner.devices.target import HIP
from tuner.errors import UnknownDevice

# The version to use if several are unpacked and none is installed. The newest version would depend
# on the tests' unpacked versions.
DEFAULT_VERSION = "0.33.0"
# The files that name the classes of models, and the pattern of such a name. Classes that a release
# no longer has are named with a release in place of a module.
MODELS = ("model_executor/models/registry.py", r'"{}":\s*\(')
# Releases name some cards by their number on the bus, whatever the driver calls them, and virtual
# machines' cards too: _ROCM_DEVICE_ID_NAME_MAP of platforms/rocm.py. These names are no driver's.
_CARDS = {
    "AMD_Radeon_RX_7900_XTX": "AMD_Radeon_RX7900XTX",
    "Radeon_8060S_Graphics": "AMD_Radeon_8060S",
}


@dataclass(frozen=True)
class VLLM:
    """A copy of vLLM on disk; see `Engine` for the interface."""

    version: str
    root: Path

    name = "vllm"

    def loads_plugins(self) -> bool:
        return True  # plugins of the entry point group vllm.general_plugins

    def card_name(self, name: str) -> str:
        names = [_CARDS[name]] if name in _CARDS else []
        with suppress(UnknownDevice):
            card = find_device(name.removesuffix("_VF"))
            names += card.driver_names if card.target.platform == HIP else ()
        return next((own for own in names if f'"{own}"' in self._rocm), name)

    @cached_property
    def _rocm(self) -> str:
        return (self.root / "platforms/rocm.py").read_text(encoding="utf-8")


ENGINE = VLLM
