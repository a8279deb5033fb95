"""What a server's flags say of the files it will ask for, and which variables point it at them.

Each engine's package has a module `launch` with a `read_flags` of this kind. It names the first
release that reads the variable of a config folder too: `CONFIG_FOLDER_SINCE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.engines.engine import Engine, config_folders, engine_package
from tuner.errors import BadProblem
from tuner.problems.dtypes import Dtype


@dataclass(frozen=True)
class ServingFlags:
    """How flags change a model's problems; the fields are those of `models.serving.Serving`."""

    dtype: Dtype | None = None  # None: the checkpoint's own
    options: Mapping[str, Any] = field(default_factory=dict)
    tp: int = 0  # 0: not said
    spreads: bool = False  # the experts are divided among all ranks
    unread: str = ""  # a sentence on a flag that changes problems and is not read

    def on(self, tp: int) -> dict[str, Any]:
        """The values of families' options where `tp` ranks serve."""
        return {**self.options, "ep": tp} if self.spreads else dict(self.options)


def number_of(flags: Mapping[str, str], names: Sequence[str]) -> int:
    """The whole number of the flag that has one of these names; 0 where none is given.

    Raises BadProblem for a value that is no number.
    """
    for name in names:
        text = flags.get(name, "0")
        if not text.isascii() or not text.isdecimal() or len(text) > 9:
            raise BadProblem(f"{name} needs a whole number, not {text!r}")
        if int(text):
            return int(text)
    return 0


def read_flags(engine: str, flags: Mapping[str, str]) -> ServingFlags:
    """What the flags of an engine's server say; `settings.flags_of` reads a command line.

    Raises BadProblem for a flag that needs a number and has none.
    """
    found: ServingFlags = _module(engine).read_flags(flags)
    return found


def with_experts(engine: str, flags: Mapping[str, str], ep: int) -> dict[str, str]:
    """The flags of a server, with the flag by which it divides its experts among ranks."""
    own: Mapping[str, str] = _module(engine).experts_flags(ep) if ep > 1 else {}
    return {**own, **flags}


def config_folder_since(engine: str) -> str:
    """The first release whose servers read a config folder's variable; empty: it is not known.

    An engine on disk knows it better: see `Delivery.variable`.
    """
    found: str = _module(engine).CONFIG_FOLDER_SINCE
    return found


def unfusing_flag(engine: str) -> str:
    """The flag that keeps shared experts apart from the routed ones; empty where there is none."""
    found: str = _module(engine).UNFUSING_FLAG
    return found


def unknown_flags(engine: Engine, words: Sequence[str]) -> list[str]:
    """The flags of a command line that the engine on disk does not know, each with the nearest."""
    found: list[str] = _module(engine.name).unknown_flags(engine, words)
    return found


def _module(engine: str) -> ModuleType:
    return import_module(f"{engine_package(engine)}.launch")


def config_variables(engine: str, root: Path) -> tuple[str, ...]:
    """The names of the variables to set to `root`, for what the folder holds.

    A variable whose files are missing is left out, because sglang stops at a folder without
    `configs/`.
    """
    return tuple(name for name, glob in config_folders(engine).items() if any(root.glob(glob)))


def all_config_variables(engine: str) -> tuple[str, ...]:
    """The names of all variables that can point an engine's servers at files."""
    return tuple(config_folders(engine))
