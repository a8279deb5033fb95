"""Open a copy of sglang on disk, for all families of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# The version to use if several are added and none is installed: `make install` adds it, and it was
# measured. The newest version would depend on the tests' unpacked versions.
DEFAULT_VERSION = "0.5.16"
# The files that name the classes of models, and the pattern of such a name.
MODELS = ("srt/models/**/*.py", r"(?m)^EntryClass\s*=\s*(?:\[[^\]]*?)?\b{}\b")


@dataclass(frozen=True)
class SGLang:
    """A copy of sglang on disk; see `Engine` for the interface."""

    version: str
    root: Path

    name = "sglang"
    package = "tuner.engines.sglang"

    def loads_plugins(self) -> bool:
        return (self.root / "srt/plugins/hook_registry.py").is_file()

    def card_name(self, name: str) -> str:
        return name


ENGINE = SGLang
