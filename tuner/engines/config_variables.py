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
    folders: dict[str, str] = import_module(f"{engine_package(engine)}.launch").CONFIG_FOLDERS
    return tuple(name for name, glob in folders.items() if any(root.glob(glob)))
