"""One copy of vLLM on disk: what all families of kernels have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# The version to use if several are unpacked and none is installed. The newest version would depend
# on what the tests have unpacked.
DEFAULT_VERSION = "0.33.0"
# The files that name the classes of models, and how they name one. Those that a release no longer
# has are named with a release in place of a module.
MODELS = ("model_executor/models/registry.py", r'"{}":\s*\(')


@dataclass(frozen=True)
class VLLM:
    """One copy of vLLM on disk; see `Engine` for the interface."""

    version: str
    root: Path

    name = "vllm"

    def loads_plugins(self) -> bool:
        return True  # those of the entry point group vllm.general_plugins


ENGINE = VLLM
