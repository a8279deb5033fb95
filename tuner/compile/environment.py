"""The triton that compile processes run, and the environment they run it in."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from tuner.errors import CompilerUnavailable

# A worker gets only those settings of Triton that say where ptxas is. Others (TRITON_INTERPRET,
# TRITON_DEBUG ...) change what is compiled, and the result cache would not know.
KEPT_SETTINGS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


def installed_triton() -> str:
    """The version of the triton that a worker would import, found without importing it.

    Raises CompilerUnavailable where triton is not installed.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise CompilerUnavailable("triton is not installed: pip install 'engine-tuner[compile]'")
    found = re.search(r"__version__ = ['\"]([^'\"]+)", Path(spec.origin).read_text())
    if found is None:
        raise CompilerUnavailable(f"{spec.origin} does not say which triton it is")
    return found[1]


def worker_env(folder: Path) -> dict[str, str]:
    """The environment of a compile process whose Triton cache lies in `folder`."""
    dropped = ("TRITON_", "MLIR_", "LLVM_")
    env = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_SETTINGS or not name.startswith(dropped)
    }
    # Compiling neither reads nor fills the user's Triton cache. Only machine code is kept, so
    # that a launch with the same folder need not compile again.
    return env | {
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_STORE_BINARY_ONLY": "1",
        "PYTHONSAFEPATH": "1",  # a folder named triton in the current folder is not triton
    }
