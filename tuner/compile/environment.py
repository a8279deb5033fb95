"""What tells one build of Triton from another, and the environment of a process that runs it."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import lru_cache
from importlib.metadata import distributions
from pathlib import Path

from tuner.engines.engine import TritonRelease
from tuner.problems.points import PTXAS_SETTINGS, version_folder


@lru_cache(maxsize=16)
def triton_build(triton: TritonRelease) -> str:
    """Tell one build of a Triton from another: its version, and a hash of its files' hashes, as its
    distribution lists them. They cover its compiler, its ptxas and its Python.
    """
    places = sys.path if triton.folder is None else [str(triton.folder)]
    found = next(iter(distributions(name="triton", path=places)), None)
    if found is None:  # it was installed under another name, or without one
        return triton.version
    listed = sorted(
        f"{path} {path.hash.value}"
        for path in found.files or ()
        if path.parts[0] == "triton" and path.suffix != ".pyc" and path.hash is not None
    )
    return f"{triton.version} {hashlib.sha256(chr(10).join(listed).encode()).hexdigest()}"


@lru_cache(maxsize=16)
def file_hash(path: str | None) -> str:
    """The sha256 of a file; "" without a path."""
    if not path:
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return f"unreadable: {path}"


def worker_env(folder: Path, triton: TritonRelease) -> dict[str, str]:
    """The environment of a compile process. Triton's cache lies in `folder`."""
    # Of Triton's settings, a process gets PTXAS_SETTINGS alone. Others (TRITON_INTERPRET,
    # TRITON_DEBUG ...) change what is compiled, and the result cache would not know.
    # They run an engine's code, which must not see the key of a server.
    dropped = ("TRITON_", "MLIR_", "LLVM_", "TUNER_API_KEY")
    env = {
        name: value
        for name, value in os.environ.items()
        if name in PTXAS_SETTINGS or not name.startswith(dropped)
    }
    if triton.folder is not None:
        paths = [str(triton.folder), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # Compiling neither reads nor fills the user's Triton cache. Only machine code is kept, so
    # that a launch with the same folder need not compile again.
    return env | {
        "TRITON_CACHE_DIR": str(folder / version_folder(triton.version)),
        "TRITON_STORE_BINARY_ONLY": "1",
        "PYTHONSAFEPATH": "1",  # a folder named triton in the current folder is not triton
    }
