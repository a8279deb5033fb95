"""One copy of vLLM on disk: what all families of kernels have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# The version to use if several are unpacked and none is installed. The newest version would depend
# on what the tests have unpacked.
DEFAULT_VERSION = "0.33.0"


@dataclass(frozen=True)
class VLLM:
    """One copy of vLLM on disk; see `Engine` for the interface."""

    version: str
    root: Path

    name = "vllm"

    def loads_plugins(self) -> bool:
        return True  # those of the entry point group vllm.general_plugins


ENGINE = VLLM
