"""The environment variables that point an engine's servers at a folder of config files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tuner.engines.engine import engine_package


def config_variables(engine: str, root: Path) -> tuple[str, ...]:
    """The names of the variables to set to `root`, for what the folder holds.

    A variable whose files are missing is left out, because sglang stops at a folder without
    `configs/`. The engine's module `launch` has the list: `CONFIG_FOLDERS`.
    """
    return tuple(name for name, glob in _folders(engine).items() if any(root.glob(glob)))


def all_config_variables(engine: str) -> tuple[str, ...]:
    """The names of all variables that can point an engine's servers at files."""
    return tuple(_folders(engine))


def _folders(engine: str) -> dict[str, str]:
    """By variable, a pattern of what a folder must hold for it."""
    found: dict[str, str] = import_module(f"{engine_package(engine)}.launch").CONFIG_FOLDERS
    return found
