"""Run sglang's default heuristic, lifted out of its source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from tuner.devices.table import Device
from tuner.devices.target import HIP
from tuner.kernels.definitions import Definitions


def run_heuristic(
    source: Path, root: Path, engine: str, device: Device, arguments: Mapping[str, object]
) -> dict[str, int]:
    """What the engine's heuristic answers on a device. `root` is the engine's package folder.

    Raises UnsupportedKernel where this version's heuristic asks for something that is not known.
    """
    flags = SimpleNamespace(enable_deterministic_inference=False)
    settings = SimpleNamespace(enable_deterministic_inference=False, deterministic=flags)
    hip, optin = device.target.backend == HIP, device.shared_optin_bytes
    # Stand-ins for the names from other modules, for the device and default flags.
    known = {
        "_is_hip": hip,
        "is_hip": lambda: hip,  # 0.4.3 binds it to another name
        "_get_cuda_shared_memory_per_block_optin": lambda: None if hip else optin,
        "get_server_args": lambda: settings,
        "get_global_server_args": lambda: settings,
        "get_exec": lambda: settings,
    }
    found: dict[str, int] = Definitions(source, root, engine, known).call(
        "get_default_config", arguments
    )
    return found
