"""Run an engine's default heuristic, lifted out of its source.

Only `get_default_config` and the definitions that it uses are compiled. The engine is not imported.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

from tuner.devices.table import Device
from tuner.devices.target import HIP
from tuner.errors import UnsupportedKernel
from tuner.kernels.definitions import Definitions

FUNCTION = "get_default_config"


def default_heuristic(
    tree: ast.Module, source: Path, engine: str, device: Device
) -> Callable[[Mapping[str, object]], dict[str, int]]:
    """The engine's heuristic on a device.

    The returned function takes a mapping of arguments and passes on the ones that this version's
    heuristic has. Raises UnsupportedKernel for an unknown name or parameter.
    """
    flags = SimpleNamespace(enable_deterministic_inference=False)
    settings = SimpleNamespace(enable_deterministic_inference=False, deterministic=flags)
    # Stand-ins for the names from other modules, for the device and default flags.
    known = {
        "_is_hip": device.target.backend == HIP,
        "_get_cuda_shared_memory_per_block_optin": lambda: device.shared_optin_bytes,
        "get_server_args": lambda: settings,
        "get_global_server_args": lambda: settings,
        "get_exec": lambda: settings,
    }
    function = Definitions(tree, source, engine, known).function(FUNCTION)
    parameters = inspect.signature(function).parameters

    def run(arguments: Mapping[str, object]) -> dict[str, int]:
        for name, parameter in parameters.items():
            if name not in arguments and parameter.default is parameter.empty:
                raise UnsupportedKernel(f"{engine}'s {FUNCTION} has an unknown parameter {name!r}")
        try:
            config: dict[str, int] = function(
                **{name: arguments[name] for name in parameters if name in arguments}
            )
        except AttributeError as error:  # a flag that the stand-ins do not have
            raise UnsupportedKernel(f"{engine}'s {FUNCTION} reads unknown state: {error}") from None
        return config

    return run
