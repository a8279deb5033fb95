"""The GPUs of this machine, as nvidia-smi shows them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from tuner.errors import MeasurerUnavailable

_QUERY = "--query-gpu=index,name,driver_version,memory.total,memory.free"
_FORMAT = "--format=csv,noheader,nounits"
_TIME_LIMIT_S = 60  # without persistence mode it takes tens of seconds


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: int
    name: str  # e.g. NVIDIA H100 80GB HBM3
    driver: str
    total_mib: int
    free_mib: int


def read_gpus() -> list[Gpu]:
    """The GPUs of this machine. Raises MeasurerUnavailable where there is none."""
    try:
        said = subprocess.run(  # noqa: S603 (words of this module)
            ["nvidia-smi", _QUERY, _FORMAT],  # noqa: S607 (the driver's, wherever it is)
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=True,
        ).stdout
        gpus = [_gpu(line) for line in said.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError, ValueError):
        gpus = []
    if not gpus:
        raise MeasurerUnavailable(
            "no GPU here: nvidia-smi names none. Run this on the machine that serves; a container "
            "needs the GPUs (`--gpus all`)"
        )
    return gpus


def _gpu(line: str) -> Gpu:
    index, name, driver, total, free = (word.strip() for word in line.split(","))
    return Gpu(int(index), name, driver, int(total), int(free))
