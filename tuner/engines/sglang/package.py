"""sglang on disk, whatever the family of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import UnsupportedKernel

# The version that is used where several lie unpacked and none is installed: the one that
# `make install` unpacks and that was measured. The newest would change with what tests unpack.
DEFAULT_VERSION = "0.5.16"


@dataclass(frozen=True)
class SGLang:
    """One copy of sglang on disk; see `Engine` for the interface."""

    version: str
    root: Path

    name = "sglang"
    package = "tuner.engines.sglang"

    def loads_plugins(self) -> bool:
        return (self.root / "srt/plugins/hook_registry.py").is_file()


def find_source(engine: SGLang, function: str, locations: Sequence[str]) -> Path:
    """The file of the package that defines a function; `locations` are where versions keep it.

    Raises UnsupportedKernel if this version keeps it nowhere that is known.
    """
    for relative in locations:
        path = engine.root / relative
        if path.is_file() and f"\ndef {function}(" in path.read_text(encoding="utf-8"):
            return path
    raise UnsupportedKernel(
        f"{engine.name} {engine.version} does not keep {function} where a known version does"
    )


ENGINE = SGLang
