"""Find an assembler for GPUs that are newer than the ptxas in a Triton. Imports triton.

The ptxas of Triton 3.4.0 knows no sm_121, so servers on a DGX Spark set TRITON_PTXAS_PATH to the
ptxas of a newer CUDA. Compile processes take such a ptxas too, if this machine has any.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import triton

from tuner.devices.target import CUDA, Target
from tuner.engines.engine import find_packages
from tuner.problems.points import PTXAS_SETTINGS

UNKNOWN = "is not defined for option 'gpu-name'"  # ptxas's message for such a GPU
_BIN = Path("backends", "nvidia", "bin")
_LIMIT_S = 20.0
_CHOSEN = any(name in os.environ for name in PTXAS_SETTINGS)  # when this process began


def borrowed() -> bool:
    """Say whether this process runs a ptxas that is neither Triton's own nor chosen by the user.

    Another machine, or this machine later, may have another ptxas to borrow.
    """
    return not _CHOSEN and any(name in os.environ for name in PTXAS_SETTINGS)


@cache
def use_one_that_knows(target: Target) -> None:
    """Let Triton run a ptxas that knows the target, if its own does not and the user chose none."""
    if target.platform != CUDA or any(name in os.environ for name in PTXAS_SETTINGS):
        return
    own = sorted((Path(triton.__file__).parent / _BIN).glob("ptxas*"))
    if not own or any(_knows(path, target) for path in own):
        return
    for path in _others():
        # A Triton refuses a ptxas of a CUDA that came after it, by its first number.
        if _knows(path, target) and _cuda(path) in map(_cuda, own):
            os.environ.update(dict.fromkeys(PTXAS_SETTINGS, str(path)))
            return


def _others() -> Iterator[Path]:
    """Yield the ptxas of a CUDA toolkit, then of each other Triton on this machine."""
    for found in (shutil.which("ptxas"), "/usr/local/cuda/bin/ptxas"):
        if found:
            yield Path(found)
    # PYTHONPATH hides an installed Triton behind the Triton that an engine pins.
    installed = [Path(folder, "triton") for folder in sys.path]
    for root in [*(package.root for package in find_packages("triton")), *installed]:
        yield from sorted((root / _BIN).glob("ptxas*"), reverse=True)


def _knows(path: Path, target: Target) -> bool:
    return target.name in re.findall(r"\bsm_\w+", _says(path, "--help"))


def _cuda(path: Path) -> str:
    """Return the first number of a ptxas's CUDA release; "" if it does not say."""
    found = re.search(r"release (\d+)\.", _says(path, "--version"))
    return found[1] if found else ""


@cache
def _says(path: Path, option: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - no shell; a program of this machine's
            [path, option], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
